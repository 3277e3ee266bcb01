"""A model that begins with frozen layers: `prefix.tflite` makes features of examples, and
`model.tflite` trains on them.

The prefix is plain inference with constant weights, in micro-batches of its own. The features of
an example never change, so they may be kept (`features.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from firmware_sim.bundle.manifest import FEATURES
from firmware_sim.bundle.reader import Bundle
from firmware_sim.tensor_spec import Array, TensorSpec
from firmware_sim.training.runtime import Model

EXAMPLES = ("x", "obs", "next_obs")  # inputs of signatures that are examples
PREFIX = "prefix"  # the signature of prefix.tflite


def open_model(bundle: Bundle, *, runtime: str | None = None, threads: int = 1) -> Model:
    """Loads the model of a bundle, with its prefix if it has one."""
    return load_model(bundle.model, bundle.prefix, runtime=runtime, threads=threads)


def load_model(
    model: Path, prefix: Path | None, *, runtime: str | None = None, threads: int = 1
) -> Model:
    """Loads a model, with its prefix if there is one."""
    if prefix is None:
        return Model(model, runtime=runtime, threads=threads)
    return PrefixedModel(model, prefix, runtime=runtime, threads=threads)


class PrefixedModel(Model):
    """Takes examples as any model does, or (as `x_features`) what `features` made of them."""

    def __init__(
        self, path: Path, prefix: Path, *, runtime: str | None = None, threads: int = 1
    ) -> None:
        super().__init__(path, runtime=runtime, threads=threads)
        self._prefix = Model(prefix, runtime=self.runtime, threads=threads)
        self._takes = self._prefix.inputs(PREFIX)["x"]

    def inputs(self, signature: str) -> Mapping[str, TensorSpec]:
        """Returns the inputs of a signature, by name: examples where it takes features."""
        found = {}
        for name, spec in super().inputs(signature).items():
            example = TensorSpec((*spec.shape[:1], *self._takes.shape[1:]), self._takes.dtype)
            of_examples = name.endswith(FEATURES)
            found[name.removesuffix(FEATURES)] = example if of_examples else spec
        return found

    def call(self, signature: str, /, **inputs: Array) -> dict[str, Array]:
        """Runs a signature, on examples or on their features."""
        takes = super().inputs(signature)
        given = dict(inputs)
        for name in EXAMPLES:
            if name in given and name + FEATURES in takes:
                given[name + FEATURES] = self.features(given.pop(name))
        return self._checked_call(signature, takes, given)

    def features(self, examples: Array) -> Array:
        """Returns the features of any number of examples, a row for each."""
        return features_of(self._prefix, examples)


def features_of(prefix: Model, examples: Array) -> Array:
    """Returns what a prefix makes of any number of examples, a row for each."""
    size, found = prefix.inputs(PREFIX)["x"].shape[0], []
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        if missing := size - len(part):
            part = np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])
        made = prefix.call(PREFIX, x=part)["features"]
        found.append(made[: size - missing])
    return np.concatenate(found)
