"""Targets in the type that `train` takes: converted exactly, or refused before training; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from firmware_sim.bundle.target import Target
from firmware_sim.errors import TaskError
from firmware_sim.tensor_spec import Array, TensorSpec

RowInFile = Callable[[int], int]  # the number of an array's row in the file
_WHOLE, _REAL = "iub", "fiub"  # kinds of numpy's types
_LARGEST = np.iinfo(np.int32).max


def as_targets(
    values: Array, target: Target, *, name: str, source: str, row: RowInFile = int
) -> Array:
    """Returns the targets of many examples, row by row; raises `TaskError` for the first bad row.

    `name` is that of the array and `source` that of its file, as the error names them; `row` says
    which row of the file a row of `values` is.
    """
    found, y = _typed(values, target), _y(target)
    if found is None:
        count = len(values) if values.ndim else 0
        raise TaskError(
            f"{source} holds {name} as {values.dtype}{list(values.shape)}; "
            f"the branch takes {TensorSpec((count, *y.shape), y.dtype)}."
        )
    if problem := _first_problem(found, target):
        number, said = problem
        raise TaskError(f"row {row(number)} of {name} in {source} is {said}.")
    return _converted(found, target)


def as_target(value: Any, target: Target) -> Array:
    """Returns the target of one example; raises `TaskError` if it is none."""
    values = np.asarray(value)[None]
    found = _typed(values, target)
    if found is None:
        raise TaskError(
            f"the target of an example is {values.dtype}{list(values.shape[1:])}; "
            f"the branch takes {_y(target)}."
        )
    if problem := _first_problem(found, target):
        raise TaskError(f"the target of an example is {problem[1]}.")
    row: Array = _converted(found, target)[0]
    return row


def first_row(bad: Array) -> int | None:
    """Returns the number of the first row with a true value in it."""
    rows = np.flatnonzero(bad.any(tuple(range(1, bad.ndim))))
    return int(rows[0]) if len(rows) else None


def _y(target: Target) -> TensorSpec:
    assert target.y is not None, "nobody states the target of an autoencoder"
    return target.y


def _typed(values: Array, target: Target) -> Array | None:
    """Returns the values in the target's shape; None if they have another, or a wrong type.

    One number for each example may stand without an axis of its own.
    """
    if values.dtype.kind not in (_WHOLE if target.is_class else _REAL) or not values.ndim:
        return None
    if values.ndim == 1 and target.shape == (1,):
        values = values[:, None]
    return values if values.shape[1:] == target.shape else None


def _first_problem(values: Array, target: Target) -> tuple[int, str] | None:
    """Returns the first row that cannot be learnt from, and what it is."""
    if not target.is_class:
        bad = ~np.isfinite(_converted(values, target))
        why = "a target is a finite number"
    else:
        low = -1 if target.kind == "class_per_position" else 0
        high = target.classes - 1 if target.classes else _LARGEST
        bad = (values < low) | (values > high)
        least = "-1 (does not count), 0" if low else "0"
        why = f"the branch's classes are {least} to {high}"
    row = first_row(bad)
    return None if row is None else (row, f"{values[row][bad[row]].flat[0]}; {why}")


def _converted(values: Array, target: Target) -> Array:
    with np.errstate(over="ignore"):  # too large for float32: it is not finite
        return values.astype(_y(target).dtype, copy=False)
