"""`prefix.tflite`: the frozen layers that a branch begins with, as plain inference."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firmware_sim.bundle.manifest import Frozen, Prefix
from firmware_sim.training.prefixed import PREFIX
from toolkit.autodiff.freezing import run_plainly
from toolkit.branch.programs import Programs, prefix_program
from toolkit.export.infer import Images, convert_constant
from toolkit.training.module import TrainingModule

MICRO_BATCH = 4  # examples; more are no faster (docs/performance.md), and take more memory


def convert_prefix(
    module: TrainingModule, precision: str, calibration: Images, *, size: int | None = None
) -> bytes:
    """Examples in, float32 features out; int8 computes in integers between the two.

    `size` is the number of examples that it takes at once.
    """
    branch, size = module.branch, size or micro_batch(module)
    program = prefix_program(branch, module.programs, size)
    as_integers = precision == "int8" and branch.input_dtype == "uint8"
    dtype = "float32" if as_integers else branch.input_dtype

    def prefix(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"features": run_plainly(program, tf.cast(x, program.x.dtype))}

    frame = tf.TensorSpec((size, *branch.input_shape), dtype, name="x")
    return convert_constant(PREFIX, prefix, frame, precision, calibration, as_integers=as_integers)


def describe_prefix(module: TrainingModule, precision: str) -> Prefix | None:
    if module.programs.cut is None:
        return None
    return Prefix(precision, micro_batch(module), module.training_program.x.shape[1:])


def describe_frozen(programs: Programs) -> Frozen | None:
    if not programs.frozen:
        return None
    shapes = {name: tuple(value.shape) for name, value in programs.frozen.items()}
    return Frozen(shapes, frozen_digest(programs.frozen))


def frozen_digest(values: Mapping[str, npt.NDArray[np.float32]]) -> str:
    """sha256 over names, shapes and values, in the order of the names."""
    found = hashlib.sha256()
    for name, value in sorted(values.items()):
        found.update(f"{name}{list(value.shape)}".encode() + value.tobytes())
    return found.hexdigest()


def micro_batch(module: TrainingModule) -> int:
    """Examples that the prefix takes at once."""
    return min(MICRO_BATCH, module.batch)
