"""Examples from a .npz file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.tasks.labelled import Examples
from firmware_sim.tensor_spec import Array

DIVIDED = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("images", "labels")
TEST_SHARE = 5  # every fifth example of an undivided set is kept for the test


def read_examples(file: Path) -> Examples:
    """Returns the examples of a file that divides them into training and test, or does not."""
    arrays = _load(file, DIVIDED, WHOLE)
    return Examples(*arrays) if len(arrays) == len(DIVIDED) else hold_out(*arrays)


def hold_out(images: Array, labels: Array) -> Examples:
    """Divides a set of examples into training and test."""
    test = np.arange(len(images)) % TEST_SHARE == 0
    return Examples(images[~test], labels[~test], images[test], labels[test])


def read_arrays(file: Path, *names: str) -> list[Array]:
    """Returns the named arrays; nothing is ever unpickled."""
    return _load(file, names)


def _load(file: Path, *choices: Sequence[str]) -> list[Array]:
    """Returns the arrays of the first choice of names of which the file has all."""
    try:
        with file.open("rb") as opened:
            arrays = np.load(opened, allow_pickle=False)
            if isinstance(arrays, Mapping):  # a lone .npy is one array, without a name
                for names in choices:
                    if all(name in arrays for name in names):
                        return [arrays[name] for name in names]
    except OSError as error:
        raise TaskError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TaskError(f"{file} cannot be read as .npz ({error}).") from None
    listed = ", or ".join(", ".join(names) for names in choices)
    named = f"array {listed}" if listed == choices[0][0] else f"arrays {listed}"
    raise TaskError(f"{file} must be an .npz file with the {named}.")
