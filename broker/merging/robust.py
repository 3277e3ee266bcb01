"""Robust merges against Byzantine devices: pure functions on [K, n] arrays, a row per device.

`blocks` cuts the rows of K devices into such arrays of bounded size, so that merging needs little
more memory than the updates themselves. Every value must be finite; all devices count equally.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

BLOCK = 2**20  # values of all devices together in one block: 4 MiB of float32

Vector = npt.NDArray[np.float32]  # n values
Stacked = npt.NDArray[np.float32]  # [K, n]


def median(stacked: Stacked) -> Vector:
    """Returns the middle value of each column, or the mean of the two middle ones if K is even."""
    devices = len(stacked)
    low, high = (devices - 1) // 2, devices // 2
    ordered = np.partition(stacked, (low, high), axis=0)
    # float64, because the sum of two large float32 values may not fit float32.
    middle: npt.NDArray[np.float64] = np.add(ordered[low], ordered[high], dtype=np.float64) / 2
    return middle.astype(np.float32)


def trimmed_mean(stacked: Stacked, liars: int) -> Vector:
    """Returns the mean of each column without its f largest and smallest values; needs K > 2f."""
    first, last = liars, len(stacked) - liars - 1
    ordered = np.partition(stacked, (first, last), axis=0)
    return mean(ordered[first : last + 1])


def mean(stacked: Stacked) -> Vector:
    """Returns the mean of each column, computed in float64."""
    means: npt.NDArray[np.float64] = np.mean(stacked, axis=0, dtype=np.float64)
    return means.astype(np.float32)


def squared_distances(rows: Sequence[Vector]) -> npt.NDArray[np.float64]:
    """Returns [K, K] of ‖x_i - x_j‖² = x_i·x_i + x_j·x_j - 2 x_i·x_j.

    Matrix products are many times faster than K² differences; their error (about 1e-16 of the
    squared norms) only matters between updates that agree in seven digits.
    """
    products = np.zeros((len(rows), len(rows)))
    for stacked in blocks(rows):
        wide = stacked.astype(np.float64)
        products += wide @ wide.T
    norms = np.diagonal(products)
    squares: npt.NDArray[np.float64] = norms[:, None] + norms[None, :] - 2 * products
    return np.maximum(squares, 0)


def krum_choice(squares: npt.NDArray[np.float64], liars: int) -> npt.NDArray[np.intp]:
    """Returns the K - f devices with the best scores, in row order (multi-Krum, Blanchard 2017).

    score_i = Σ of the squared distances from i to its K - f - 2 nearest others; needs K ≥ 2f + 3.
    Of two equal scores the first row is chosen.
    """
    devices = len(squares)
    others = squares.copy()
    np.fill_diagonal(others, np.inf)
    scores = np.sort(others, axis=1)[:, : devices - liars - 2].sum(axis=1)
    best = np.argsort(scores, kind="stable")[: devices - liars]
    return np.sort(best)


def by_blocks(rule: Callable[[Stacked], Vector], rows: Sequence[Vector]) -> Vector:
    """Returns the result of the rule for the rows, computed block by block."""
    merged = np.empty(rows[0].size, np.float32)
    start = 0
    for stacked in blocks(rows):
        end = start + stacked.shape[1]
        merged[start:end] = rule(stacked)
        start = end
    return merged


def blocks(rows: Sequence[Vector]) -> Iterator[Stacked]:
    """Yields the rows as stacked blocks of columns, each of at most BLOCK values."""
    width = max(1, BLOCK // len(rows))
    for start in range(0, rows[0].size, width):
        yield np.stack([row[start : start + width] for row in rows])
