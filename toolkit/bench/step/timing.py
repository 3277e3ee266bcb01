"""Times training steps in the same way for every contestant."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from firmware_sim.probe import peak_memory_bytes, random_input
from firmware_sim.tensor_spec import Array, TensorSpec

Batch = dict[str, Array]


def timed_steps(
    step: Callable[[Batch], float], specs: Mapping[str, tuple[Any, Any]], steps: int
) -> dict[str, object]:
    """Returns the report of `steps` timed steps on one random batch, after two warm-up steps."""
    rng = np.random.default_rng(0)
    batch = {
        name: random_input(rng, TensorSpec(tuple(shape), np.dtype(dtype)))
        for name, (shape, dtype) in specs.items()
    }
    for _ in range(2):
        step(batch)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step(batch)
        times.append(time.perf_counter() - begin)
    return {"step_seconds": times, "peak_bytes": peak_memory_bytes()}
