"""Operations that move numbers without changing them; their gradients move them back."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import Pullback, Pullbacks, Rule, shape_of, unbroadcast

Result = tuple[tf.Tensor, Pullbacks]


def reshape(node: Node, x: tf.Tensor) -> Result:
    return tf.reshape(x, node.output.shape), (lambda dy: tf.reshape(dy, shape_of(x)),)


def transpose(_: Node, x: tf.Tensor, order: Any) -> Result:
    back = np.argsort(order)
    return tf.transpose(x, order), (lambda dy: tf.transpose(dy, back),)


def pad(_: Node, x: tf.Tensor, paddings: Any, value: Any = 0.0) -> Result:
    before = [int(n) for n, _ in paddings]
    y = tf.pad(x, paddings, constant_values=float(value))
    return y, (lambda dy: tf.slice(dy, before, shape_of(x)),)


def concatenate(node: Node, *inputs: Any) -> Result:
    *parts, axis = inputs
    along = int(axis) % len(node.output.shape)
    sizes = [shape_of(part)[along] for part in parts]
    starts = np.cumsum([0, *sizes])

    def part_of(i: int) -> Pullback:
        def pullback(dy: tf.Tensor) -> tf.Tensor:
            begin, size = [0] * len(dy.shape), list(shape_of(dy))
            begin[along], size[along] = int(starts[i]), sizes[i]
            return tf.slice(dy, begin, size)

        return pullback

    return tf.concat(parts, along), tuple(part_of(i) for i in range(len(parts)))


def tile(_: Node, x: tf.Tensor, multiples: Any) -> Result:
    """The gradient adds up the copies: a repeated axis is split in two, copies first."""
    split: list[int] = []
    copies: list[int] = []
    for size, times in zip(shape_of(x), (int(n) for n in multiples), strict=True):
        if times > 1:
            copies.append(len(split))
            split.append(times)
        split.append(size)
    return tf.tile(x, multiples), (
        lambda dy: tf.reshape(tf.reduce_sum(tf.reshape(dy, split), copies), shape_of(x)),
    )


def broadcast_to(_: Node, x: tf.Tensor, shape: Any) -> Result:
    return tf.broadcast_to(x, shape), (lambda dy: unbroadcast(dy, x),)


def strided_slice(node: Node, x: tf.Tensor, begin: Any, end: Any, _: Any) -> Result:
    """Plain slices with step one; all others are expanded."""
    starts, sizes = [0] * len(x.shape), list(shape_of(x))
    for axis in range(len(begin)):
        bit = 1 << axis
        first = None if node.attrs["begin_mask"] & bit else int(begin[axis])
        last = None if node.attrs["end_mask"] & bit else int(end[axis])
        taken = range(sizes[axis])[slice(first, last)]
        if node.attrs["shrink_axis_mask"] & bit:
            taken = range(sizes[axis])[int(begin[axis]) :][:1]
        starts[axis], sizes[axis] = taken.start, len(taken)
    paddings = [
        [start, total - start - size]
        for start, size, total in zip(starts, sizes, shape_of(x), strict=True)
    ]
    y = tf.reshape(tf.slice(x, starts, sizes), node.output.shape)
    return y, (lambda dy: tf.pad(tf.reshape(dy, sizes), paddings),)


def reverse(_: Node, x: tf.Tensor, axis: Any) -> Result:
    return tf.reverse(x, axis), (lambda dy: tf.reverse(dy, axis),)


def space_to_batch(_: Node, x: tf.Tensor, block: Any, paddings: Any) -> Result:
    """A dilated convolution is a dense one on every n-th pixel; these two take the pixels apart."""
    y = tf.raw_ops.SpaceToBatchND(input=x, block_shape=block, paddings=paddings)
    return y, (lambda dy: tf.raw_ops.BatchToSpaceND(input=dy, block_shape=block, crops=paddings),)


def batch_to_space(_: Node, x: tf.Tensor, block: Any, crops: Any) -> Result:
    y = tf.raw_ops.BatchToSpaceND(input=x, block_shape=block, crops=crops)
    return y, (lambda dy: tf.raw_ops.SpaceToBatchND(input=dy, block_shape=block, paddings=crops),)


RULES: dict[str, Rule] = {
    "Reshape": reshape,
    "Transpose": transpose,
    "Pad": pad,
    "PadV2": pad,
    "ConcatV2": concatenate,
    "Tile": tile,
    "BroadcastTo": broadcast_to,
    "StridedSlice": strided_slice,
    "ReverseV2": reverse,
    "SpaceToBatchND": space_to_batch,
    "BatchToSpaceND": batch_to_space,
}
