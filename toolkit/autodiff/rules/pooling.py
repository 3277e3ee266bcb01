"""Maximum and average pooling of any size, step and overlap."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import Pullbacks, Rule, nonzero, shape_of, sum_of
from toolkit.autodiff.rules.windows import (
    Window,
    framed,
    shifted,
    spread,
    unshifted,
    windows,
)

Result = tuple[tf.Tensor, Pullbacks]
_LOWEST = float(np.finfo(np.float32).min)  # padding that never is a maximum


def max_pool(node: Node, x: tf.Tensor) -> Result:
    """The first maximum of each window gets the gradient, as in TensorFlow."""
    _, high, wide, _ = node.attrs["ksize"]
    rows, columns = windows(node, (high, wide))
    y = tf.nn.max_pool2d(x, (high, wide), (rows.stride, columns.stride), node.attrs["padding"])

    def pullback(dy: tf.Tensor) -> tf.Tensor:
        if (rows.kernel, columns.kernel) == (rows.stride, columns.stride) and not (
            rows.before or rows.after or columns.before or columns.after
        ):
            return _to_tiles(x, y, dy, high, wide)
        return _to_windows(x, y, dy, rows, columns)

    return y, (pullback,)


def _to_tiles(x: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, high: int, wide: int) -> tf.Tensor:
    """Windows that do not overlap. Their rows become an axis and their columns channels: slices
    need no step, and putting the gradients back is a concatenation."""
    n, h, w, c = shape_of(y)
    _, height, width, _ = shape_of(x)
    tiles, untile = framed(x, (0, h * high - height), (0, w * wide - width))
    pixels = tf.reshape(tiles, [n * h, high, w, wide * c])
    gradients = _to_first_maxima(
        (
            tf.reshape(tf.slice(pixels, [0, i, 0, j * c], [n * h, 1, w, c]), [n, h, w, c])
            for i in range(high)
            for j in range(wide)
        ),
        y,
        dy,
    )
    lines = [
        tf.reshape(tf.concat(gradients[i : i + wide], -1), [n * h, 1, w, wide * c])
        for i in range(0, high * wide, wide)
    ]
    return untile(tf.reshape(tf.concat(lines, 1), shape_of(tiles)))


def _to_windows(
    x: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, rows: Window, columns: Window
) -> tf.Tensor:
    """Windows of any step and overlap: a pixel adds up what every window gives it."""
    edges = [[0, 0], [rows.before, rows.after], [columns.before, columns.after], [0, 0]]
    padded = tf.pad(x, edges, constant_values=_LOWEST) if np.any(edges) else x
    _, height, width, _ = shape_of(padded)
    taps = [(i, j) for i in range(rows.kernel) for j in range(columns.kernel)]
    gradients = _to_first_maxima((shifted(padded, *tap, rows, columns) for tap in taps), y, dy)
    dx = sum_of(
        unshifted(gradient, *tap, rows, columns, (height, width))
        for tap, gradient in zip(taps, gradients, strict=True)
    )
    return framed(dx, (-rows.before, -rows.after), (-columns.before, -columns.after))[0]


def _to_first_maxima(pixels: Iterable[tf.Tensor], y: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
    """Visits the pixels of all windows in order; each window gives its gradient away once.

    y ≥ pixel, and where they are equal nothing is left for the later ones. What is left for the
    last one is its own, since one of them is the maximum.
    """
    gradients = []
    left = dy
    *pixels, _ = pixels
    for pixel in pixels:
        still_left = left * nonzero(y - pixel)
        gradients.append(left - still_left)
        left = still_left
    return [*gradients, left]


def average_pool(node: Node, x: tf.Tensor) -> Result:
    """dx is the sum of dy over every window that a pixel is in: again an average pooling."""
    _, high, wide, _ = node.attrs["ksize"]
    rows, columns = windows(node, (high, wide))
    y = tf.nn.avg_pool2d(x, (high, wide), (rows.stride, columns.stride), node.attrs["padding"])
    _, height, width, _ = shape_of(x)
    share = (1.0 / np.outer(_members(rows, height), _members(columns, width)))[None, :, :, None]

    def pullback(dy: tf.Tensor) -> tf.Tensor:
        wide_dy = spread(dy * share.astype(np.float32), rows.stride, columns.stride)
        around = [
            (w.kernel - 1 - w.before, size + w.before - (w.out * w.stride))
            for w, size in ((rows, height), (columns, width))
        ]
        framed_dy, _ = framed(wide_dy, around[0], around[1])
        return tf.nn.avg_pool2d(framed_dy, (high, wide), 1, "VALID") * float(high * wide)

    return y, (pullback,)


def _members(window: Window, size: int) -> npt.NDArray[np.int64]:
    """How many real pixels each window holds: zeros around the image do not count."""
    first = np.arange(window.out) * window.stride - window.before
    return np.asarray(np.minimum(first + window.kernel, size) - np.maximum(first, 0))


RULES: dict[str, Rule] = {"MaxPool": max_pool, "AvgPool": average_pool}
