"""The state of a task as plain arrays: a digest of its data, and some counters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.tensor_spec import Array


def arrays_digest(*parts: Array) -> bytes:
    """sha256 over the shapes, types and values of arrays."""
    found = hashlib.sha256()
    for part in parts:
        found.update(f"{part.dtype}{part.shape}".encode())
        found.update(np.ascontiguousarray(part).data)
    return found.digest()


def pack(data: bytes, **counters: int) -> dict[str, Array]:
    """Returns a state: arrays that any tensor format can hold."""
    numbers = {name: np.array(value, np.int64) for name, value in counters.items()}
    return {"data": np.frombuffer(data, np.uint8).copy(), **numbers}


def unpack(state: Mapping[str, Array], data: bytes, *counters: str) -> list[int]:
    """Returns the counters of a state; raises `TaskError` if it was packed for other data."""
    if state.keys() != {"data", *counters}:
        raise TaskError(f"a state of this task holds data, {', '.join(counters)}, and no more.")
    if state["data"].tobytes() != data:
        raise TaskError("the state was saved with other data than the task has now.")
    return [_counter(name, state[name]) for name in counters]


def _counter(name: str, value: Array) -> int:
    if value.shape != () or value.dtype != np.int64 or value < 0:
        raise TaskError(f"{name} in the state of a task is a single int64, 0 or more.")
    return int(value)
