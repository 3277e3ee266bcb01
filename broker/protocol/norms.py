"""‖Δ‖² of the tensors of an update: one product serves its check and the bounds of a merge."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from broker.protocol.slice import Tensors

_BLOCK = 2**13  # values of a product: few enough that it is computed by one thread, in one order
_LEAST_SQUARES = 1e-30  # below, squares of float32 values lose digits


def squared_norms(tensors: Tensors) -> dict[str, float]:
    """Returns ‖Δ‖₂² of each tensor, to six digits; NaN and infinity stay what they are."""
    with np.errstate(all="ignore"):
        return {name: _squared_norm(tensor.reshape(-1)) for name, tensor in tensors.items()}


def _squared_norm(flat: npt.NDArray[np.float32]) -> float:
    """Σ_i x_i², by float32 products of blocks that are added in float64.

    Squares of tiny or huge values do not fit float32; the products are then float64 ones.
    """
    if flat.size <= _BLOCK:
        squares = float(flat @ flat)
    else:
        squares = math.fsum(float(block @ block) for block in _blocks(flat))
    if _LEAST_SQUARES < squares < math.inf:
        return squares
    return sum(float(wide @ wide) for wide in (b.astype(np.float64) for b in _blocks(flat)))


def _blocks(flat: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    return [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]
