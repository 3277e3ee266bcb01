"""Memory of this process, and random inputs; loads numpy alone, to add little to a measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firmware_sim.tensor_spec import Array, TensorSpec


def peak_memory_bytes() -> int:
    """Returns the peak resident memory (VmHWM); unlike ru_maxrss, exec starts it anew."""
    return memory_bytes("VmHWM")


def memory_bytes(what: str) -> int:
    """Returns one value of /proc/self/status, such as VmHWM or VmRSS, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel does not report {what}")


def random_input(rng: np.random.Generator, spec: TensorSpec) -> Array:
    """Returns random numbers of the right type; labels and actions are 0 or 1, valid anywhere."""
    if spec.dtype == np.uint8:
        return rng.integers(0, 256, spec.shape, dtype=np.uint8)
    if spec.dtype == np.int32:
        return rng.integers(0, 2, spec.shape, dtype=np.int32)
    return rng.random(spec.shape, dtype=np.float32)
