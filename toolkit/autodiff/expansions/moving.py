"""Operations that only move numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, cut


def _stack(call: Call, *parts: Any) -> list[tf.Tensor]:
    axis = call.attrs["axis"] % len(call.shapes[0])
    return [tf.concat([tf.expand_dims(part, axis) for part in parts], axis)]


def _unstack(call: Call, x: tf.Tensor) -> list[tf.Tensor]:
    axis = call.attrs["axis"] % len(x.shape)
    return [tf.reshape(cut(x, axis, i, i + 1), shape) for i, shape in enumerate(call.shapes)]


def _split(call: Call, axis: Any, x: tf.Tensor) -> list[tf.Tensor]:
    (at,) = call.numbers(axis)
    at %= len(x.shape)
    ends = np.cumsum([0, *(shape[at] for shape in call.shapes)])
    return [cut(x, at, ends[i], ends[i + 1]) for i in range(len(call.shapes))]


def _split_by_sizes(call: Call, x: tf.Tensor, _: Any, axis: Any) -> list[tf.Tensor]:
    return _split(call, axis, x)


def _reverse(call: Call, x: tf.Tensor, axes: Any) -> list[tf.Tensor] | None:
    """One axis at a time: tflite-runtime reverses only the first it is given."""
    along = call.numbers(axes)
    if len(along) == 1:
        return None
    for axis in along:
        x = tf.reverse(x, [axis])
    return [x]


def _roll(call: Call, x: tf.Tensor, shifts: Any, axes: Any) -> list[tf.Tensor]:
    for shift, axis in zip(call.numbers(shifts), call.numbers(axes), strict=True):
        at = axis % len(x.shape)
        first = -shift % x.shape[at]
        if first:
            x = tf.concat([cut(x, at, first, x.shape[at]), cut(x, at, 0, first)], at)
    return [x]


def _mirror(call: Call, x: tf.Tensor, paddings: Any) -> list[tf.Tensor]:
    """The edge itself is repeated in the mode SYMMETRIC and left out in REFLECT."""
    out = 0 if call.attrs["mode"] == "SYMMETRIC" else 1
    pairs = np.reshape(call.numbers(paddings), [-1, 2]).tolist()
    for axis, (before, after) in enumerate(pairs):
        size = x.shape[axis]
        parts = [x]
        if before:
            parts.insert(0, tf.reverse(cut(x, axis, out, out + before), [axis]))
        if after:
            parts.append(tf.reverse(cut(x, axis, size - out - after, size - out), [axis]))
        x = tf.concat(parts, axis) if len(parts) > 1 else x
    return [x]


def _depth_to_space(call: Call, x: tf.Tensor) -> list[tf.Tensor]:
    b, (n, h, w, c) = call.attrs["block_size"], x.shape
    split = tf.reshape(x, [n, h, w, b, c // b])
    return [tf.reshape(tf.transpose(split, [0, 1, 3, 2, 4]), call.shapes[0])]


def _space_to_depth(call: Call, x: tf.Tensor) -> list[tf.Tensor]:
    b, (n, h, w, c) = call.attrs["block_size"], x.shape
    split = tf.reshape(x, [n, h // b, b, w // b, b * c])
    return [tf.reshape(tf.transpose(split, [0, 1, 3, 2, 4]), call.shapes[0])]


EXPANSIONS: dict[str, Expansion] = {
    "Pack": _stack,
    "Unpack": _unstack,
    "Split": _split,
    "SplitV": _split_by_sizes,
    "ReverseV2": _reverse,
    "Roll": _roll,
    "MirrorPad": _mirror,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
