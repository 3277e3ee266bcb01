"""Arithmetic on named arrays: products and sums of float32 values, computed in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from broker.protocol.slice import Tensors

# numpy converts float32 to float64 through a buffer. Its default of 8,192 values does not fit the
# first-level cache of a core; this one does, and halves the time of an addition.
_CAST_BUFFER = 1024  # values
CHUNK = 2**17  # values: 1 MiB of float64, which stays in the second-level cache


def scaled(tensors: Tensors, weight: float | Mapping[str, float]) -> Tensors:
    """Returns weight · Δ as new arrays, with one weight for all tensors or one for each."""
    result: Tensors = {}
    with small_cast_buffers(), np.errstate(over="ignore"):
        for name, tensor in tensors.items():
            factor = weight[name] if isinstance(weight, Mapping) else weight
            # Multiplied in float64: a tiny factor would lose its digits as a float32.
            result[name] = np.multiply(
                tensor,
                factor,
                out=np.empty(tensor.shape, np.float32),
                dtype=np.float64,
                casting="same_kind",
            )
    return result


def accumulate(
    total: npt.NDArray[np.float64],
    flat: npt.NDArray[np.float32],
    weight: float,
    scratch: npt.NDArray[np.float64],
) -> None:
    """total += weight · flat, with the product in float64 too."""
    if weight == 1.0:
        np.add(total, flat, out=total)
        return
    for start in range(0, flat.size, scratch.size):
        part = slice(start, start + scratch.size)
        product = scratch[: flat[part].size]
        np.multiply(flat[part], weight, out=product, dtype=np.float64)
        np.add(total[part], product, out=total[part])


@contextmanager
def small_cast_buffers() -> Iterator[None]:
    """Sets the size of numpy's conversion buffer in this thread, and restores it."""
    before = np.setbufsize(_CAST_BUFFER)
    try:
        yield
    finally:
        np.setbufsize(before)
