"""A branch: the network one device trains, and which of its layers it shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import keras
import numpy as np
import numpy.typing as npt

from toolkit.autodiff import Program, trace
from toolkit.autodiff.naming import named_variables
from toolkit.autodiff.nested_layers import nested_layers, output_of
from toolkit.branch.learning import Learning, Supervised
from toolkit.errors import ModelError


@dataclass(frozen=True, eq=False)
class Branch:
    """A plain Keras model plus the names of its shared layers and how it learns.

    The device feeds `input_dtype`; the model sees input · `input_scale` as float32.

    With an `early_output`, a layer inside, the loss is taken there as well: L(output) + L(early).
    """

    name: str
    model: keras.Model
    shared_layers: tuple[str, ...]
    learning: Learning = field(default_factory=Supervised)
    input_dtype: str = "float32"
    input_scale: float = 1.0
    early_output: str | None = None

    def __post_init__(self) -> None:
        layers = {layer.name for layer in nested_layers(self.model)}
        for name in self.shared_layers:
            if name not in layers:
                raise ModelError(
                    f"the branch shares layer {name!r}, which the model does not have; "
                    f"its layers are {', '.join(sorted(layers))}."
                )
        if self.early_output is not None:
            self._check_early_output(self.early_output)
        if not self.shared_names:
            raise ModelError("the branch shares no layer that has weights; name at least one.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.model.input_shape[1:])

    @property
    def trainable_names(self) -> tuple[str, ...]:
        """Names of the trainable tensors, shared ones first."""
        return self.shared_names + self.local_names

    @property
    def shared_names(self) -> tuple[str, ...]:
        return tuple(name for name in self._trainable() if self._is_shared(name))

    @property
    def local_names(self) -> tuple[str, ...]:
        return tuple(name for name in self._trainable() if not self._is_shared(name))

    def weights(self) -> Mapping[str, npt.NDArray[np.float32]]:
        """Every float tensor of the model, moving statistics included, by name."""
        return {
            name: np.asarray(v)
            for name, v in named_variables(self.model).items()
            if v.dtype == "float32"
        }

    def trace(self, *, batch: int, training: bool) -> Program:
        """The operations from what the device feeds to the model's output, for one batch size."""
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
        trainable = {v.path for v in self.model.trainable_variables}
        return [n for n, v in named_variables(self.model).items() if v.path in trainable]

    def _is_shared(self, name: str) -> bool:
        """'stem_conv1/kernel' belongs to layer stem_conv1, 'net/block/conv/kernel' to conv."""
        return not set(name.split("/")[:-1]).isdisjoint(self.shared_layers)


def sharing_everything(branch: Branch) -> Branch:
    """The same network, of which every layer with weights is shared."""
    names = tuple(layer.name for layer in nested_layers(branch.model) if layer.weights)
    return replace(branch, shared_layers=names)
