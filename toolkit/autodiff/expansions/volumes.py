"""Convolutions and pooling of volumes [n, depth, height, width, c], as those of images."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, cut
from toolkit.errors import UnsupportedOp


def _convolution(call: Call, x: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
    """The images under one window along the depth are laid side by side, as channels."""
    _channels_last(call)
    (n, depth, h, w, c), (deep, high, wide, inside, o) = x.shape, kernel.shape
    if inside != c:
        raise UnsupportedOp(call.layer, call.op, "grouped convolution of volumes")
    step, dilation = call.attrs["strides"][1], call.attrs["dilations"][1]
    out = call.shapes[0][1]
    missing = (out - 1) * step + (deep - 1) * dilation + 1 - depth
    before = max(missing, 0) // 2 if call.attrs["padding"] == "SAME" else 0
    frames = tf.reshape(x, [n, depth, h * w * c])
    frames = tf.pad(frames, [[0, 0], [before, max(missing - before, 0)], [0, 0]])
    taps = [
        tf.reshape(
            frames[:, tap * dilation : tap * dilation + (out - 1) * step + 1 : step],
            [n * out, h, w, c],
        )
        for tap in range(deep)
    ]
    weights = tf.reshape(tf.transpose(kernel, [1, 2, 0, 3, 4]), [high, wide, deep * c, o])
    y = tf.nn.conv2d(
        tf.concat(taps, 3),
        weights,
        call.attrs["strides"][2:4],
        call.attrs["padding"],
        dilations=call.attrs["dilations"][2:4],
    )
    return [tf.reshape(y, call.shapes[0])]


def _transposed(call: Call, _: Any, kernel: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
    """Every image makes as many as the kernel is deep; those at the same place are added."""
    _channels_last(call)
    if call.attrs["dilations"][1] != 1:
        raise UnsupportedOp(call.layer, call.op, "dilation along the depth")
    (n, depth, h, w, c), (deep, high, wide, o, _) = x.shape, kernel.shape
    _, out, height, width, _ = call.shapes[0]
    step = call.attrs["strides"][1]
    weights = tf.reshape(tf.transpose(kernel, [1, 2, 0, 3, 4]), [high, wide, deep * o, c])
    images = tf.nn.conv2d_transpose(
        tf.reshape(x, [n * depth, h, w, c]),
        weights,
        [n * depth, height, width, deep * o],
        call.attrs["strides"][2:4],
        call.attrs["padding"],
    )
    images = tf.reshape(images, [n, depth, height * width, deep * o])
    full = max((depth - 1) * step + deep, out)
    total = tf.zeros([n, full, height * width * o])
    for tap in range(deep):
        part = tf.reshape(cut(images, 3, tap * o, (tap + 1) * o), [n, depth, 1, -1])
        part = tf.pad(part, [[0, 0], [0, 0], [0, step - 1], [0, 0]])
        part = cut(tf.reshape(part, [n, depth * step, -1]), 1, 0, (depth - 1) * step + 1)
        total += tf.pad(part, [[0, 0], [tap, full - tap - part.shape[1]], [0, 0]])
    missing = max((depth - 1) * step + deep - out, 0)
    before = missing // 2 if call.attrs["padding"] == "SAME" else 0
    return [tf.reshape(cut(total, 1, before, before + out), call.shapes[0])]


def _pool(call: Call, x: tf.Tensor) -> list[tf.Tensor]:
    """Over images first, then along the depth."""
    _channels_last(call)
    pool = tf.nn.max_pool2d if call.op == "MaxPool3D" else tf.nn.avg_pool2d
    n, depth, h, w, c = x.shape
    (_, deep, *size, _), (_, step, *steps, _) = call.attrs["ksize"], call.attrs["strides"]
    y = pool(tf.reshape(x, [n * depth, h, w, c]), size, steps, call.attrs["padding"])
    y = tf.reshape(y, [n, depth, y.shape[1] * y.shape[2], c])
    y = pool(y, [deep, 1], [step, 1], call.attrs["padding"])
    return [tf.reshape(y, call.shapes[0])]


def _channels_last(call: Call) -> None:
    if call.attrs["data_format"] != "NDHWC":
        raise UnsupportedOp(call.layer, call.op, "channels before pixels")


EXPANSIONS: dict[str, Expansion] = {
    "Conv3D": _convolution,
    "Conv3DBackpropInputV2": _transposed,
    "MaxPool3D": _pool,
    "AvgPool3D": _pool,
}
