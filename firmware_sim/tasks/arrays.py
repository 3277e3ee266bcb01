"""Examples from a .npz file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.tasks.labelled import Examples
from firmware_sim.tensor_spec import Array

DIVIDED = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("images", "labels")
TEST_SHARE = 5  # every fifth example of an undivided set is kept for the test


def read_examples(file: Path) -> Examples:
    """Examples that the file divides into training and test, or else all its images."""
    arrays = _load(file, DIVIDED, WHOLE)
    return Examples(*arrays) if len(arrays) == len(DIVIDED) else hold_out(*arrays)


def hold_out(images: Array, labels: Array) -> Examples:
    """Divides a set into training and test."""
    test = np.arange(len(images)) % TEST_SHARE == 0
    return Examples(images[~test], labels[~test], images[test], labels[test])


def read_arrays(file: Path, *names: str) -> list[Array]:
    """The named arrays; nothing is ever unpickled."""
    return _load(file, names)


def _load(file: Path, *choices: Sequence[str]) -> list[Array]:
    """The arrays of the first choice of names that the file has all of."""
    try:
        with file.open("rb") as opened:
            arrays = np.load(opened, allow_pickle=False)
            for names in choices:
                if all(name in arrays for name in names):
                    return [arrays[name] for name in names]
    except OSError as error:
        raise TaskError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (ValueError, IndexError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TaskError(f"{file} cannot be read as .npz ({error}).") from None
    listed = ", or ".join(", ".join(names) for names in choices)
    raise TaskError(f"{file} must hold the arrays {listed}.")
