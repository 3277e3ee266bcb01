"""What every measurement needs; it loads numpy alone, so as not to weigh on what is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firmware_sim.tensor_spec import Array, TensorSpec


def peak_memory_bytes() -> int:
    """The high-water mark of this process (VmHWM); unlike ru_maxrss it starts anew with exec."""
    return memory_bytes("VmHWM")


def memory_bytes(what: str) -> int:
    """A line of /proc/self/status, as VmHWM or VmRSS."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel does not tell {what}")


def random_input(rng: np.random.Generator, spec: TensorSpec) -> Array:
    """Something of the right type: labels and actions are 0 or 1, which any model has."""
    if spec.dtype == np.uint8:
        return rng.integers(0, 256, spec.shape, dtype=np.uint8)
    if spec.dtype == np.int32:
        return rng.integers(0, 2, spec.shape, dtype=np.int32)
    return rng.random(spec.shape, dtype=np.float32)
