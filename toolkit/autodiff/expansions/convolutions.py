"""Grouped and transposed convolutions, as dense ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, cut
from toolkit.errors import UnsupportedOp


def _convolution(call: Call, x: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor] | None:
    """Groups are convolutions side by side; one channel in each is a depthwise convolution."""
    attrs = call.attrs
    if attrs["data_format"] != "NHWC" or attrs["padding"] == "EXPLICIT":
        return None  # which the rule refuses
    high, wide, depth, filters = kernel.shape
    groups = x.shape[-1] // depth
    strides, dilations = attrs["strides"][1:3], attrs["dilations"][1:3]
    if groups == 1:
        return None
    if depth == 1 and strides[0] == strides[1] and dilations == (1, 1):
        each = tf.reshape(kernel, [high, wide, groups, filters // groups])
        return [tf.nn.depthwise_conv2d(x, each, attrs["strides"], attrs["padding"])]
    size = filters // groups
    parts = [
        tf.nn.conv2d(
            cut(x, 3, i * depth, (i + 1) * depth),
            cut(kernel, 3, i * size, (i + 1) * size),
            strides,
            attrs["padding"],
            dilations=dilations,
        )
        for i in range(groups)
    ]
    return [tf.concat(parts, 3)]


def _transposed(call: Call, _: Any, kernel: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
    """y[i·s + t] = Σ x[i]·kernel[t], the transpose of a convolution with step s.

    With t = q·s + r it is, for every r < s, a dense convolution: y[j·s + r] = Σ_q x[j - q]·k_r[q].
    All r are computed at once, as channels, and then laid between each other.
    """
    if call.attrs["data_format"] != "NHWC":
        raise UnsupportedOp(call.layer, call.op, "channels before pixels")
    kernel = _dilated(kernel, call.attrs["dilations"][1:3])
    (n, h, w, c), (_, height, width, o), (tall, broad, _, _) = x.shape, call.shapes[0], kernel.shape
    sh, sw = call.attrs["strides"][1:3]
    high, wide = -(-tall // sh), -(-broad // sw)  # taps of every k_r
    taps = tf.pad(kernel, [[0, high * sh - tall], [0, wide * sw - broad], [0, 0], [0, 0]])
    taps = tf.reverse(tf.reshape(taps, [high, sh * wide * sw * o * c]), [0])
    taps = tf.reverse(tf.reshape(taps, [high * sh, wide, sw * o * c]), [1])
    taps = tf.transpose(tf.reshape(taps, [high, sh, wide, sw * o, c]), [0, 2, 4, 1, 3])
    around = tf.pad(x, [[0, 0], [high - 1, high - 1], [wide - 1, wide - 1], [0, 0]])
    y = tf.nn.conv2d(around, tf.reshape(taps, [high, wide, c, sh * sw * o]), 1, "VALID")
    rows, columns = h + high - 1, w + wide - 1
    y = tf.transpose(tf.reshape(y, [n, rows, columns, sh, sw * o]), [0, 1, 3, 2, 4])
    y = tf.reshape(y, [n, rows * sh, columns * sw, o])
    y = _from(y, 1, _zeros_before(call, h, height, sh, tall), height)
    return [_from(y, 2, _zeros_before(call, w, width, sw, broad), width)]


def _from(y: tf.Tensor, axis: int, start: int, size: int) -> tf.Tensor:
    """As many entries from a place on, with zeros where there are no more."""
    missing = max(start + size - y.shape[axis], 0)
    y = tf.pad(y, [[0, missing if i == axis else 0] for i in range(len(y.shape))])
    return cut(y, axis, start, start + size)


def _zeros_before(call: Call, inside: int, outside: int, step: int, reach: int) -> int:
    """How many zeros the convolution, whose transpose it is, puts before its input."""
    if call.attrs["padding"] == "VALID":
        return 0
    if call.attrs["padding"] != "SAME":
        raise UnsupportedOp(call.layer, call.op, f"{call.attrs['padding']} padding")
    return max((inside - 1) * step + reach - outside, 0) // 2


def _dilated(kernel: tf.Tensor, dilation: tuple[int, int]) -> tf.Tensor:
    """The kernel with zeros between its taps."""
    for axis, step in enumerate(dilation):
        if step > 1:
            shape = list(kernel.shape)
            apart = tf.expand_dims(kernel, axis + 1)
            zeros = [[0, step - 1 if i == axis + 1 else 0] for i in range(5)]
            shape[axis] *= step
            filled = tf.reshape(tf.pad(apart, zeros), shape)
            kernel = cut(filled, axis, 0, shape[axis] - step + 1)
    return kernel


EXPANSIONS: dict[str, Expansion] = {"Conv2D": _convolution, "Conv2DBackpropInput": _transposed}
