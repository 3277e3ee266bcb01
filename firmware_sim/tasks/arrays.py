"""Examples from a .npz file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.tasks.labelled import Examples, hold_out, no_targets
from firmware_sim.tensor_spec import Array

DIVIDED = ("x_train", "y_train", "x_test", "y_test")
WHOLE = (("x", "y"), ("images", "labels"))
INPUTS_ALONE = (("x_train", "x_test"), ("x",), ("images",))  # enough for an autoencoder
_ARCHIVE, _ARRAY = b"PK", b"\x93NUMPY"  # what .npz and .npy files begin with


def read_examples(file: Path) -> Examples:
    """Returns the examples of a file that divides them into training and test, or does not.

    If it has no targets, those of the examples are empty.
    """
    found = _load(file, DIVIDED, *WHOLE, alone=INPUTS_ALONE)
    if "x_train" in found:
        x, x_test = found["x_train"], found["x_test"]
        y, y_test = found.get("y_train", no_targets(x)), found.get("y_test", no_targets(x_test))
        return Examples(x, y, x_test, y_test)
    (x_name, x), *more = found.items()
    y_name, y = more[0] if more else ("y", no_targets(x))
    return hold_out(x, y, names=(x_name, y_name))


def read_arrays(file: Path, *names: str) -> list[Array]:
    """Returns the named arrays; nothing is ever unpickled."""
    return list(_load(file, names).values())


def read_inputs(file: Path) -> Array:
    """Returns the array x, or the inputs of a file that a device trains on."""
    (found,) = _load(file, ("x",), alone=(("x_train",), ("images",))).values()
    return found


def _load(
    file: Path, *choices: Sequence[str], alone: Sequence[Sequence[str]] = ()
) -> dict[str, Array]:
    """Returns the arrays of the first choice of names of which the file has all.

    `alone` are further choices, which are not recommended to a user who has none of them.
    """
    try:
        with file.open("rb") as opened:
            _refuse_text(file, opened.read(512))
            opened.seek(0)
            arrays = np.load(opened, allow_pickle=False)
            if isinstance(arrays, Mapping):  # a lone .npy is one array, without a name
                for names in (*choices, *alone):
                    if all(name in arrays for name in names):
                        return {name: arrays[name] for name in names}
    except OSError as error:
        raise TaskError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TaskError(f"{file} cannot be read as .npz ({error}).") from None
    listed = ", or ".join(", ".join(names) for names in choices)
    named = f"array {listed}" if listed == choices[0][0] else f"arrays {listed}"
    raise TaskError(f"{file} must be an .npz file with the {named}.")


def _refuse_text(file: Path, head: bytes) -> None:
    """Raises `TaskError` for a table in plain text, such as a .csv file."""
    if head and not head.startswith((_ARCHIVE, _ARRAY)) and head.isascii() and b"\0" not in head:
        raise TaskError(
            f"{file} is text, not .npz; read it with numpy.loadtxt and write its columns with "
            "numpy.savez(file, x=…, y=…)."
        )
