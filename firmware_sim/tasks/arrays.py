"""Examples from a .npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from firmware_sim.runtime import Array
from firmware_sim.tasks.labelled import Examples
from firmware_sim.tasks.task import TaskError


def read_examples(file: Path) -> Examples:
    """x_train, y_train, x_test and y_test."""
    return Examples(*read_arrays(file, "x_train", "y_train", "x_test", "y_test"))


def read_arrays(file: Path, *names: str) -> list[Array]:
    """The named arrays; nothing is ever unpickled."""
    try:
        with file.open("rb") as opened:
            arrays = np.load(opened, allow_pickle=False)
            return [arrays[name] for name in names]
    except KeyError:
        raise TaskError(f"{file} must hold the arrays {', '.join(names)}.") from None
    except OSError as error:
        raise TaskError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (ValueError, IndexError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TaskError(f"{file} cannot be read as .npz ({error}).") from None
