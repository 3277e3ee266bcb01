"""Sliding windows: paddings, strides as blocks, and the maps that undo them.

Every function that a gradient must pass back through returns (result, pullback).
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import Pullback, shape_of
from toolkit.errors import UnsupportedOp


@dataclass(frozen=True)
class Window:
    """One spatial axis of a sliding window: size, step, and zeros before and after."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def reach(self) -> int:
        """The number of pixels that one window spans."""
        return (self.kernel - 1) * self.dilation + 1


def windows(node: Node, kernel: tuple[int, int]) -> tuple[Window, Window]:
    """The two spatial axes of a convolution or pooling node."""
    if node.attrs.get("data_format", "NHWC") != "NHWC":
        raise UnsupportedOp(node.layer, node.op, "channels before pixels")
    return _window(node, kernel[0], 1), _window(node, kernel[1], 2)


def _window(node: Node, kernel: int, axis: int) -> Window:
    """TensorFlow's rule for SAME: the odd zero goes after."""
    size, out = node.inputs[0].shape[axis], node.output.shape[axis]
    stride = node.attrs["strides"][axis]
    dilation = node.attrs.get("dilations", (1, 1, 1, 1))[axis]
    padding = node.attrs["padding"]
    if padding == "VALID":
        return Window(kernel, stride, dilation, 0, 0, out)
    if padding != "SAME":
        raise UnsupportedOp(node.layer, node.op, f"{padding} padding")
    missing = max((out - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return Window(kernel, stride, dilation, missing // 2, missing - missing // 2, out)


def framed(
    x: tf.Tensor, rows: tuple[int, int], columns: tuple[int, int]
) -> tuple[tf.Tensor, Pullback]:
    """Adds (or, if negative, removes) rows and columns of zeros before and after."""
    if rows == (0, 0) and columns == (0, 0):
        return x, lambda dy: dy
    (top, bottom), (left, right) = rows, columns
    y = _crop(x, top, bottom, left, right)
    y = _zeros_around(y, top, bottom, left, right)

    def pullback(dy: tf.Tensor) -> tf.Tensor:
        dy = _crop(dy, -top, -bottom, -left, -right)
        return _zeros_around(dy, -top, -bottom, -left, -right)

    return y, pullback


def _crop(x: tf.Tensor, top: int, bottom: int, left: int, right: int) -> tf.Tensor:
    """Removes rows and columns where the numbers are negative."""
    n, height, width, c = shape_of(x)
    top, bottom, left, right = (max(-k, 0) for k in (top, bottom, left, right))
    if not (top or bottom or left or right):
        return x
    return tf.slice(x, [0, top, left, 0], [n, height - top - bottom, width - left - right, c])


def _zeros_around(x: tf.Tensor, top: int, bottom: int, left: int, right: int) -> tf.Tensor:
    """Adds rows and columns of zeros where the numbers are positive."""
    top, bottom, left, right = (max(k, 0) for k in (top, bottom, left, right))
    if not (top or bottom or left or right):
        return x
    return tf.pad(x, [[0, 0], [top, bottom], [left, right], [0, 0]])


def blocks(x: tf.Tensor, high: int, wide: int) -> tuple[tf.Tensor, Pullback]:
    """[n, h·high, w·wide, c] → [n, h, w, high·wide·c]: a strided window becomes a dense one."""
    if high == wide == 1:
        return x, lambda dy: dy
    if high == wide:
        return tf.nn.space_to_depth(x, high), lambda dy: tf.nn.depth_to_space(dy, high)
    n, height, width, c = shape_of(x)
    split = [n, height // high, high, width // wide, wide * c]
    merged = [n, height // high, width // wide, high * wide * c]

    def pullback(dy: tf.Tensor) -> tf.Tensor:
        dy = tf.reshape(dy, [split[0], split[1], split[3], split[2], split[4]])
        return tf.reshape(tf.transpose(dy, [0, 1, 3, 2, 4]), shape_of(x))

    return tf.reshape(tf.transpose(tf.reshape(x, split), [0, 1, 3, 2, 4]), merged), pullback


def spread(x: tf.Tensor, high: int, wide: int) -> tf.Tensor:
    """[n, h, w, c] → [n, h·high, w·wide, c] with zeros between: a strided slice transposed."""
    if high == wide == 1:
        return x
    n, h, w, c = shape_of(x)
    x = tf.pad(
        tf.reshape(x, [n * h, 1, w, c]), [[0, 0], [0, high - 1], [0, 0], [0, (wide - 1) * c]]
    )
    return tf.reshape(x, [n, h * high, w * wide, c])


def shifted(x: tf.Tensor, row: int, column: int, rows: Window, columns: Window) -> tf.Tensor:
    """What pixel (row, column) of every window sees: a strided slice of the padded input."""
    n, _, _, c = shape_of(x)
    top, left = row * rows.dilation, column * columns.dilation
    height, width = (rows.out - 1) * rows.stride + 1, (columns.out - 1) * columns.stride + 1
    return tf.strided_slice(
        x,
        [0, top, left, 0],
        [n, top + height, left + width, c],
        [1, rows.stride, columns.stride, 1],
    )


def unshifted(
    dy: tf.Tensor, row: int, column: int, rows: Window, columns: Window, size: tuple[int, int]
) -> tf.Tensor:
    """The transpose of `shifted`: puts gradients back on an input of `size`, zeros elsewhere."""
    wide = spread(dy, rows.stride, columns.stride)
    top, left = row * rows.dilation, column * columns.dilation
    _, height, width, _ = shape_of(wide)
    return framed(wide, (top, size[0] - top - height), (left, size[1] - left - width))[0]
