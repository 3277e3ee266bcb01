"""Layers in every formulation, as models that a device can time: see `firmware_sim.tune`.

    <folder>/<number>.tflite   one layer; a signature for each choice, and `set` for the kernel
    <folder>/index.json        what is in them

They are converted as a training graph is, and read the kernel from a variable as it does: that
decides which kernels a runtime uses, and whether its delegate takes the graph at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import tensorflow as tf

from broker.durable import write_file
from firmware_sim.bundle.reader import file_digest
from firmware_sim.tune import FORMAT, INDEX, SET
from toolkit.autodiff.lower import Choice, Layer
from toolkit.autodiff.rules.formulations import FORMULATIONS
from toolkit.conversion.convert import convert_module
from toolkit.conversion.signature import Function, Signature, Tensors
from toolkit.errors import ExportError
from toolkit.writing import make_folder


class Candidates(tf.Module):  # type: ignore[misc]
    """All formulations of one layer for one batch size, over one kernel."""

    def __init__(self, layer: Layer, batch: int, part_bytes: int) -> None:
        super().__init__()
        self.layer = layer
        high, wide, filters = layer.kernel
        height, width, channels = layer.image
        rows, columns = layer.dilation
        out = height - (high - 1) * rows, width - (wide - 1) * columns
        self.kernel = tf.Variable(tf.zeros([high, wide, channels, filters]), name="kernel")
        self.inputs = {
            "x": tf.TensorSpec((batch, *layer.image), tf.float32),
            "dy": tf.TensorSpec((batch, *out, filters), tf.float32),
        }
        self.choices = {c.formulation: c for c in self._distinct(part_bytes)}

    def signatures(self) -> dict[str, Signature]:
        kernel = {"kernel": tf.TensorSpec(self.kernel.shape, tf.float32)}
        return {
            # The converter makes a constant of what no signature writes.
            SET: Signature(self.set, kernel),
            **{n: Signature(self._computed_by(c), self.inputs) for n, c in self.choices.items()},
        }

    def set(self, kernel: tf.Tensor) -> Tensors:
        self.kernel.assign(kernel)
        return {"size": tf.constant(kernel.shape.num_elements())}

    def _computed_by(self, choice: Choice) -> Function:
        """x, dy → y, dkernel, and dx where it is needed: what a training step does with a layer."""

        def compute(x: tf.Tensor, dy: tf.Tensor) -> Tensors:
            y, (input_gradient, kernel_gradient) = FORMULATIONS[choice.formulation](
                x, self.kernel.read_value(), self.layer.dilation, choice.part_bytes
            )
            found = {"y": y, "dkernel": kernel_gradient(dy)}
            return found if self.layer.first else {**found, "dx": input_gradient(dy)}

        return compute

    def _distinct(self, part_bytes: int) -> list[Choice]:
        """Choices whose graphs differ: of a kernel of one pixel there is little to gather."""
        found: dict[tuple[tuple[str, str], ...], Choice] = {}
        for formulation in FORMULATIONS:
            choice = Choice(formulation, part_bytes)
            found.setdefault(self._operations(choice), choice)
        return list(found.values())

    def _operations(self, choice: Choice) -> tuple[tuple[str, str], ...]:
        function = tf.function(self._computed_by(choice), autograph=False)
        graph = function.get_concrete_function(**self.inputs).graph
        return tuple((op.type, str([t.shape for t in op.outputs])) for op in graph.get_operations())


def write_candidates(
    layers: Sequence[Layer],
    batch: int,
    folder: Path,
    *,
    part_bytes: int,
    progress: Callable[[str], None] = lambda what: None,
) -> None:
    """Fills a folder to be carried to a device; an earlier one is replaced."""
    if folder.exists() and not (folder.is_dir() and _is_ours(folder)):
        raise ExportError(f"{folder} exists and does not hold candidates; choose another place.")
    make_folder(folder)
    try:
        _write(layers, batch, folder, part_bytes, progress)
    except OSError as error:
        raise ExportError(f"cannot write the candidates to {folder} ({error.strerror}).") from error


def _write(
    layers: Sequence[Layer],
    batch: int,
    folder: Path,
    part_bytes: int,
    progress: Callable[[str], None],
) -> None:
    for old in (folder / INDEX, *folder.glob("*.tflite")):  # the index first, until all is there
        old.unlink(missing_ok=True)
    entries = []
    for number, layer in enumerate(layers):
        progress(f"layer {number + 1} of {len(layers)}")
        candidates = Candidates(layer, batch, part_bytes)
        file = folder / f"{number}.tflite"
        file.write_bytes(convert_module(candidates))
        entries.append(
            {
                "layer": layer.name,
                "file": file.name,
                "sha256": file_digest(file),
                "choices": {name: asdict(c) for name, c in candidates.choices.items()},
            }
        )
    index = {"format": FORMAT, "batch": batch, "layers": entries}
    write_file(folder / INDEX, (json.dumps(index, indent=2) + "\n").encode())


def _is_ours(folder: Path) -> bool:
    return (folder / INDEX).is_file() or not any(folder.iterdir())
