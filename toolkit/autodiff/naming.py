"""The names that tensors have everywhere: in bundles, on the wire, in checkpoints."""

from __future__ import annotations

import keras

from toolkit.errors import ModelError


def named_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Every variable by its Keras path without the model's own name: 'stem_conv1/kernel'.

    A stem must be called the same in every branch, and Keras puts a Sequential model's name in
    front of its layers'.
    """
    named: dict[str, keras.Variable] = {}
    for variable in model.variables:
        name = variable.path.removeprefix(f"{model.name}/")
        if name in named:
            raise ModelError(
                f"two tensors of the model are called {name!r}; name its layers apart."
            )
        named[name] = variable
    return named
