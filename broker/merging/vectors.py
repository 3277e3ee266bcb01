"""Arithmetic on named arrays: norms, products and sums of float32 values, computed in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from broker.protocol.slice import Tensors

# numpy converts float32 to float64 through a buffer. Its default of 8,192 values does not fit the
# first-level cache of a core; this one does, and halves the time of an addition.
_CAST_BUFFER = 1024  # values
_BLOCK = 2**13  # values of a product: few enough that it is computed by one thread, in one order
_LEAST_SQUARES = 1e-30  # below, squares of float32 values lose digits
CHUNK = 2**17  # values: 1 MiB of float64, which stays in the second-level cache


def squared_norms(tensors: Tensors) -> dict[str, float]:
    """Returns ‖Δ‖₂² of each tensor, to six digits."""
    with np.errstate(over="ignore", under="ignore"):
        return {name: _squared_norm(tensor.reshape(-1)) for name, tensor in tensors.items()}


def _squared_norm(flat: npt.NDArray[np.float32]) -> float:
    """Σ_i x_i², by float32 products of blocks that are added in float64.

    Squares of tiny or huge values do not fit float32; the products are then float64 ones.
    """
    blocks = [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]
    squares = math.fsum(float(block @ block) for block in blocks)
    if _LEAST_SQUARES < squares < math.inf:
        return squares
    return math.fsum(float(np.dot(w, w)) for w in (b.astype(np.float64) for b in blocks))


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
