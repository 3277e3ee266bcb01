"""8×8 handwritten digits: 1,797 real images, small enough to be part of the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firmware_sim.tasks.arrays import read_arrays, read_examples
from firmware_sim.tasks.labelled import Examples
from firmware_sim.tensor_spec import Array, TensorSpec

FILE = Path(__file__).parents[1] / "data" / "digits.npz"
EXAMPLE = TensorSpec((8, 8, 1), np.dtype(np.uint8))


def digit_images() -> tuple[Array, Array]:
    """Returns all images, uint8 [n, 8, 8, 1] with values 0 … 16, and their int32 labels."""
    images, labels = read_arrays(FILE, "images", "labels")
    return images, labels


def read_digits() -> Examples:
    return read_examples(FILE)
