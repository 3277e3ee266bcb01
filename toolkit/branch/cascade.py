"""A cascade of any two networks: the strong branch contains the whole weak one.

    weak branch     y = L(x)
    strong branch   y = L(x) + R(x)

L is the weak network and R the strong one, both without a closing softmax. Layers at the beginning
that both have in common are computed once. The whole of L is shared, so that strong devices train
the network that the weak ones use. There are two ways to train it so that L also works alone:

    loss at both outputs   loss(L + R) + loss(L)
    branch dropout         loss(L + d·R), with d = 0 or 1 / (1 - rate) drawn for each example; this
                           is the paper's way
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
from keras import layers

from toolkit.autodiff.nested_layers import nested_layers, producer
from toolkit.branch.branch import Branch, sharing_everything
from toolkit.branch.layers import BranchDropout
from toolkit.errors import ModelError

INPUT, SUM = "cascade_input", "cascade_sum"
BRANCH_DROPOUT = "branch_dropout"
STRONG = "strong_"  # prefix of a strong layer whose name a different weak layer has


def cascade(weak: Branch, strong: Branch, *, branch_dropout: float | None = None) -> Branch:
    """Returns the strong branch of a cascade; its weak branch is `weak` itself.

    It learns as `strong` does, with a loss at both outputs, or with branch dropout if a rate is
    given. Weights are those of the given networks, and those of `weak` where both have a layer.
    """
    _check(weak, strong)
    light, refinement = without_softmax(weak.model), without_softmax(strong.model)
    x = keras.Input(weak.input_shape, name=INPUT)
    join = _Join(light, branch_dropout)
    early = join.add_weak(x)
    own = join.add_strong(refinement, x)
    if own is early:
        raise ModelError(
            f"{strong.name} is the same network as {weak.name}; in a cascade the strong one has "
            "layers of its own."
        )
    logits = layers.Add(name=SUM)([early, own])
    closed = weak.model.outputs[0] is not light.outputs[0]
    y = layers.Softmax(name=join.free_name("softmax"))(logits) if closed else logits
    model = keras.Model(x, y, name=f"{strong.model.name}_cascade")
    join.copy_weights(model)
    return replace(
        strong,
        name=f"{strong.name}-cascade",
        model=model,
        shared_layers=weak.shared_layers,
        early_output=producer(early).name if branch_dropout is None else None,
    )


def without_softmax(model: keras.Model) -> keras.Model:
    """Returns the model up to its closing softmax, as a functional model.

    Raises `ModelError` if it closes with another activation, behind which outputs cannot be added.
    """
    x, y = model.inputs[0], model.outputs[0]
    last = producer(y)
    if isinstance(last, keras.Model) and without_softmax(last).outputs[0] is not last.outputs[0]:
        raise ModelError(
            f"{model.name} closes with a softmax inside {last.name}, a nested model, and a cascade "
            "adds what comes before it; put the softmax behind the nested model."
        )
    if type(last).__name__ == "Softmax" or isinstance(last, layers.Activation):
        kind = getattr(last, "activation", keras.activations.softmax)
        if kind is keras.activations.softmax:
            return keras.Model(x, last.input, name=model.name)
    kind = getattr(last, "activation", keras.activations.linear)
    functional = keras.Model(x, y, name=model.name)
    if kind is keras.activations.linear:
        return functional
    if kind is not keras.activations.softmax:
        raise ModelError(
            f"{model.name} closes with {kind.__name__}, and a cascade adds the outputs of two "
            "networks; they must close with a softmax or without an activation."
        )

    def clone(layer: layers.Layer) -> layers.Layer:
        return _clone(layer, activation="linear") if layer is last else _clone(layer)

    opened = keras.models.clone_model(functional, clone_function=clone)
    opened.set_weights(functional.get_weights())
    return opened


def _check(weak: Branch, strong: Branch) -> None:
    for what in ("input_shape", "input_dtype", "input_scale"):
        ours, theirs = getattr(weak, what), getattr(strong, what)
        if ours != theirs:
            raise ModelError(
                f"a cascade takes two networks on the same input, and {what.replace('_', ' ')} is "
                f"{ours} in {weak.name} and {theirs} in {strong.name}."
            )
    if weak.model.output_shape != strong.model.output_shape:
        raise ModelError(
            f"a cascade adds the outputs of two networks, and {weak.name} answers "
            f"{weak.model.output_shape}, {strong.name} {strong.model.output_shape}."
        )
    if type(weak.learning) is not type(strong.learning):
        raise ModelError(
            f"{weak.name} learns by {type(weak.learning).__name__} and {strong.name} by "
            f"{type(strong.learning).__name__}; the networks of a cascade learn in the same way."
        )
    own = set(sharing_everything(weak).shared_names) - set(weak.shared_names)
    if own:
        raise ModelError(
            f"in a cascade the whole weak network is shared, and {weak.name} keeps "
            f"{', '.join(sorted(own))}; let its function return the model alone, or give "
            "--share all."
        )


class _Join:
    """Copies two networks, call by call, into one graph on the same input."""

    def __init__(self, weak: keras.Model, branch_dropout: float | None) -> None:
        self._weak = weak
        self._branch_dropout = branch_dropout
        self._originals: dict[str, Any] = {}  # layers, by the name of the copy
        self._computed: dict[str, list[tuple[Any, ...]]] = {}  # weak calls and results, by layer

    def add_weak(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weak network's output."""

        def call(layer: Any, *inputs: Any, **options: Any) -> Any:
            y = layer(*inputs, **options)
            original = self._originals.get(layer.name, layer)
            self._computed.setdefault(layer.name, []).append((original, inputs, options, y))
            return y

        return self._copy(self._weak, x, call, lambda name: name)

    def add_strong(self, strong: keras.Model, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the strong network's output; a call that the weak one makes too is its call."""
        last = producer(strong.outputs[0])

        def call(layer: Any, *inputs: Any, **options: Any) -> Any:
            original = self._originals.get(layer.name, layer)
            for weak, weak_inputs, weak_options, y in self._computed.get(original.name, ()):
                if _same_layer(weak, original) and _same_inputs(
                    (weak_inputs, weak_options), (inputs, options)
                ):
                    return y
            if original is last and self._branch_dropout is not None:
                dropout = BranchDropout(self._branch_dropout, name=BRANCH_DROPOUT)
                if len(inputs) == 1 and isinstance(inputs[0], keras.KerasTensor):
                    return layer(dropout(inputs[0]), **options)
                return dropout(layer(*inputs, **options))  # a sum of several tensors
            return layer(*inputs, **options)

        taken = {*self._originals, *(layer.name for layer in nested_layers(self._weak))}
        return self._copy(strong, x, call, lambda name: STRONG + name if name in taken else name)

    def free_name(self, name: str) -> str:
        """Returns the name for a layer of the cascade's own; a network may have one called so."""
        return f"cascade_{name}" if name in self._originals else name

    def copy_weights(self, model: keras.Model) -> None:
        """Gives every copy in the model the weights of its original."""
        for layer in model.layers:
            if layer.name in self._originals:
                layer.set_weights(self._originals[layer.name].get_weights())

    def _copy(
        self,
        model: keras.Model,
        x: keras.KerasTensor,
        call: Callable[..., Any],
        rename: Callable[[str], str],
    ) -> keras.KerasTensor:
        def clone(layer: layers.Layer) -> layers.Layer:
            name = rename(layer.name)
            self._originals[name] = layer
            return _clone(layer, **({} if name == layer.name else {"name": name}))

        copy = keras.models.clone_model(
            model, input_tensors=x, clone_function=clone, call_function=call
        )
        return copy.outputs[0]


def _clone(layer: layers.Layer, **changes: Any) -> layers.Layer:
    """Returns a new layer that is called and configured alike, but for the changes.

    A nested model is taken as it is: in a copy Keras would name its tensors in another way.
    """
    if isinstance(layer, keras.Model) and not changes:
        return layer
    return type(layer).from_config({**layer.get_config(), **changes})


def _same_layer(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one.get_config() == other.get_config()


def _same_inputs(one: Any, other: Any) -> bool:
    """Whether two calls get the very same tensors, and otherwise equal values."""
    ours, theirs = keras.tree.flatten(one), keras.tree.flatten(other)
    return len(ours) == len(theirs) and all(
        a is b or (not isinstance(a, keras.KerasTensor) and a == b)
        for a, b in zip(ours, theirs, strict=True)
    )
