"""Depthwise convolution."""

from __future__ import annotations

import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import Pullbacks, Rule, shape_of, sum_of
from toolkit.autodiff.rules.windows import framed, shifted, spread, windows

Result = tuple[tf.Tensor, Pullbacks]


def depthwise_conv2d(node: Node, x: tf.Tensor, kernel: tf.Tensor) -> Result:
    """y[..., c·m+k] = Σ_ij x[i, j, c] · kernel[i, j, c, k], for m filters per channel."""
    high, wide, channels, multiplier = shape_of(kernel)
    rows, columns = windows(node, (high, wide))
    padded, unpad = framed(x, (rows.before, rows.after), (columns.before, columns.after))
    _, height, width, _ = shape_of(padded)
    y = tf.nn.depthwise_conv2d(
        padded,
        kernel,
        node.attrs["strides"],
        "VALID",
        dilations=(rows.dilation, columns.dilation),
    )

    def input_gradient(dy: tf.Tensor) -> tf.Tensor:
        """A depthwise convolution of the spread-out dy with the flipped kernel."""
        # Rows and columns turn as one axis: tflite-runtime reverses only the first it is given.
        taps = tf.reshape(kernel, [high * wide, channels * multiplier])
        flipped = tf.reshape(tf.reverse(taps, [0]), shape_of(kernel))
        wide_dy = spread(dy, rows.stride, columns.stride)
        _, h, w, _ = shape_of(wide_dy)
        top, left = rows.reach - 1, columns.reach - 1
        wide_dy, _ = framed(wide_dy, (top, height - h), (left, width - w))
        each = tf.reshape(wide_dy, [*shape_of(wide_dy)[:3], channels, multiplier])
        parts = [
            tf.nn.depthwise_conv2d(
                each[..., k] if multiplier > 1 else wide_dy,
                flipped[..., k : k + 1],
                (1, 1, 1, 1),
                "VALID",
                dilations=(rows.dilation, columns.dilation),
            )
            for k in range(multiplier)
        ]
        return unpad(sum_of(parts))

    def kernel_gradient(dy: tf.Tensor) -> tf.Tensor:
        taps = []
        for row in range(high):
            for column in range(wide):
                pixel = shifted(padded, row, column, rows, columns)
                if multiplier > 1:
                    n, h, w, c = shape_of(pixel)
                    pixel = tf.reshape(pixel, [n * h * w, c, 1])
                    pixel = tf.reshape(tf.tile(pixel, [1, 1, multiplier]), [n, h, w, -1])
                taps.append(tf.reduce_sum(pixel * dy, [0, 1, 2]))
        return tf.reshape(tf.concat(taps, 0), shape_of(kernel))

    return y, (input_gradient, kernel_gradient)


RULES: dict[str, Rule] = {"DepthwiseConv2dNative": depthwise_conv2d}
