"""A branch: the network one device trains, and which of its layers it shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from firmware_sim.bundle.target import Target
from toolkit.autodiff import Program, trace
from toolkit.autodiff.naming import named_variables
from toolkit.autodiff.nested_layers import nested_layers, output_of
from toolkit.branch.learning import Learning, Supervised
from toolkit.branch.target import target_of
from toolkit.errors import ModelError


@dataclass(frozen=True, eq=False)
class Branch:
    """A plain Keras model plus the names of its shared layers and how it learns.

    The device feeds `input_dtype`; the model sees input · `input_scale` as float32.

    With an `early_output`, a layer inside, the loss is taken there as well: L(output) + L(early).

    A tensor is trained if Keras calls it trainable and, where an update plan names the `trained`
    ones, the plan does too. A shared tensor that is not trained is received: the fleet gives it in
    every round. Those of a layer with `trainable = False` are received only if it is one of the
    `received_layers`. All others that training does not move are frozen.
    """

    name: str
    model: keras.Model
    shared_layers: tuple[str, ...]
    learning: Learning = field(default_factory=Supervised)
    input_dtype: str = "float32"
    input_scale: float = 1.0
    early_output: str | None = None
    received_layers: tuple[str, ...] = ()
    update: str = "all"  # the update plan that named the trained tensors
    trained: frozenset[str] | None = None

    def __post_init__(self) -> None:
        layers = {layer.name: layer for layer in nested_layers(self.model)}
        for name in (*self.shared_layers, *self.received_layers):
            if name not in layers:
                raise ModelError(
                    f"the branch shares layer {name!r}, which the model does not have; "
                    f"its layers are {', '.join(sorted(layers))}."
                )
        for name in self.shared_layers:
            layer = layers[name]
            if layer.weights and not layer.trainable_weights and name not in self.received_layers:
                raise ModelError(
                    f"the branch shares layer {name!r}, which is frozen, so that nothing of it "
                    "would be sent; let it train, do not share it, or receive it (--receive)."
                )
        if self.early_output is not None:
            self._check_early_output(self.early_output)
        if not self.shared_names:
            raise ModelError("the branch shares no layer that has weights; name at least one.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.model.input_shape[1:])

    @property
    def target(self) -> Target | None:
        """What it learns to answer for an example; None: it does not learn from examples."""
        return target_of(
            self.name,
            self.learning,
            takes=self.model.input_shape,
            answers=self.model.output_shape,
            scale=self.input_scale,
        )

    @property
    def trainable_names(self) -> tuple[str, ...]:
        """Names of the trained tensors, shared ones first."""
        return self.sent_names + self.local_names

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Names of all tensors that the fleet gives, in the order of the model."""
        sent, received = set(self.sent_names), set(self.received_names)
        return tuple(name for name in named_variables(self.model) if name in sent | received)

    @property
    def sent_names(self) -> tuple[str, ...]:
        """Of the shared tensors those that this device trains."""
        return tuple(name for name in self._trained() if self._is_in(name, self.shared_layers))

    @property
    def received_names(self) -> tuple[str, ...]:
        """Of the shared tensors those that this device only takes from the fleet."""
        trained = set(self._trained())
        candidates = [n for n in self._trainable() if self._is_in(n, self.shared_layers)]
        if self.received_layers:
            with trainability(self.model, dict.fromkeys(nested_layers(self.model), True)):
                learnable = self._trainable()
            own = {n for n in learnable if self._is_in(n, self.received_layers)}
            candidates = [n for n in learnable if n in own or n in candidates]
        return tuple(name for name in candidates if name not in trained)

    @property
    def local_names(self) -> tuple[str, ...]:
        return tuple(name for name in self._trained() if not self._is_in(name, self.shared_layers))

    def weights(self) -> Mapping[str, npt.NDArray[np.float32]]:
        """Every float tensor of the model, moving statistics included, by name."""
        return {
            name: np.asarray(v)
            for name, v in named_variables(self.model).items()
            if v.dtype == "float32"
        }

    def trace(self, *, batch: int, training: bool) -> Program:
        """The operations from what the device feeds to the model's output, for one batch size.

        Batch normalisation that an update plan does not train is in inference mode.
        """
        with trainability(self.model, dict.fromkeys(self._still_normalisations(), False)):
            return trace(
                self.model,
                batch=batch,
                training=training,
                input_dtype=self.input_dtype,
                input_scale=self.input_scale,
                early_output=self.early_output,
            )

    def _check_early_output(self, name: str) -> None:
        found = output_of(self.model, name)
        if found is None:
            raise ModelError(f"the early output {name!r} is no layer of the model.")
        if found.shape != self.model.output_shape:
            raise ModelError(
                f"the early output {name!r} has the shape {found.shape}, and the model answers "
                f"{self.model.output_shape}; both must be equal."
            )

    def _trainable(self) -> list[str]:
        """What Keras calls trainable."""
        trainable = {v.path for v in self.model.trainable_variables}
        return [n for n, v in named_variables(self.model).items() if v.path in trainable]

    def _trained(self) -> list[str]:
        return [
            name
            for name in self._trainable()
            if (self.trained is None or name in self.trained)
            and not self._is_in(name, self.received_layers)
        ]

    def _is_in(self, name: str, layers: tuple[str, ...]) -> bool:
        """'stem_conv1/kernel' belongs to layer stem_conv1, 'net/block/conv/kernel' to conv."""
        return not set(name.split("/")[:-1]).isdisjoint(layers)

    def _still_normalisations(self) -> list[keras.Layer]:
        if self.trained is None:
            return []
        names = {v.path: name for name, v in named_variables(self.model).items()}
        moving = {*self.trainable_names, *self.received_names}
        return [
            layer
            for layer in nested_layers(self.model)
            if isinstance(layer, keras.layers.BatchNormalization)
            and not moving.issuperset(names[v.path] for v in layer.trainable_variables)
        ]


@contextmanager
def trainability(model: keras.Model, flags: Mapping[keras.Layer, bool]) -> Iterator[None]:
    """Gives layers of the model other values of `trainable` for a while."""
    before = {layer: layer.trainable for layer in nested_layers(model)} if flags else {}
    for layer, flag in flags.items():
        layer.trainable = flag
    try:
        yield
    finally:
        for layer, flag in before.items():  # the outer ones first, which set the inner ones too
            layer.trainable = flag


def sharing_everything(branch: Branch) -> Branch:
    """The same network, of which every layer with weights is shared."""
    return replace(branch, shared_layers=all_layers(branch.model))


def all_layers(model: keras.Model) -> tuple[str, ...]:
    """The names of all layers that have trainable weights, those inside others included."""
    return tuple(layer.name for layer in nested_layers(model) if layer.trainable_weights)


def with_learning_rate(branch: Branch, rate: float | None) -> Branch:
    """Returns the branch with this learning rate, or unchanged if it is None."""
    if rate is None:
        return branch
    changed: Any = {"learning_rate": rate}
    optimizer = replace(branch.learning.optimizer, **changed)  # type: ignore[type-var]
    return replace(branch, learning=replace(branch.learning, optimizer=optimizer))
