"""Images of another size: every row and every column is a weighted sum of given ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, linear

Matrix = npt.NDArray[np.float32]


def _resize(call: Call, x: tf.Tensor, size: Any) -> list[tf.Tensor]:
    weights = _bilinear if call.op == "ResizeBilinear" else _nearest
    for axis, out in enumerate(call.numbers(size), start=1):
        if out != x.shape[axis]:
            x = linear(weights(call, int(x.shape[axis]), out), x, axis)
    return [x]


def _bilinear(call: Call, size: int, out: int) -> Matrix:
    """Place p lies between ⌊p⌋ and ⌈p⌉, and is near either by the rest."""
    places = _places(call, size, out)
    low, share = np.floor(places), places - np.floor(places)
    weights = np.zeros((out, size), np.float32)
    rows = np.arange(out)
    np.add.at(weights, (rows, np.clip(low, 0, size - 1).astype(int)), 1 - share)
    np.add.at(weights, (rows, np.clip(np.ceil(places), 0, size - 1).astype(int)), share)
    return weights


def _nearest(call: Call, size: int, out: int) -> Matrix:
    rounds = call.attrs["half_pixel_centers"] or call.attrs["align_corners"]
    places = np.floor(_places(call, size, out) + (0.5 if rounds else 0.0))
    weights = np.zeros((out, size), np.float32)
    weights[np.arange(out), np.clip(places, 0, size - 1).astype(int)] = 1.0
    return weights


def _places(call: Call, size: int, out: int) -> npt.NDArray[np.float64]:
    """Where in the given row the pixels of the new one lie."""
    pixels = np.arange(out, dtype=np.float64)
    if call.attrs["half_pixel_centers"]:
        return (pixels + 0.5) * (size / out) - 0.5
    if call.attrs["align_corners"] and out > 1:
        return pixels * ((size - 1) / (out - 1))
    return pixels * (size / out)


EXPANSIONS: dict[str, Expansion] = {"ResizeBilinear": _resize, "ResizeNearestNeighbor": _resize}
