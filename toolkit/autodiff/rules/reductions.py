"""Sums, means and maxima along axes; global pooling and normalisation are made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import NO_GRADIENT, Pullbacks, Rule, nonzero, shape_of

Result = tuple[tf.Tensor, Pullbacks]


def total(node: Node, x: tf.Tensor, axes: Any) -> Result:
    kept = _kept(x, axes)
    y = tf.reshape(tf.reduce_sum(x, _axes(x, axes)), node.output.shape)
    return y, (lambda dy: tf.broadcast_to(tf.reshape(dy, kept), shape_of(x)),)


def mean(node: Node, x: tf.Tensor, axes: Any) -> Result:
    kept = _kept(x, axes)
    share = 1.0 / (x.shape.num_elements() / math.prod(kept))
    y = tf.reshape(tf.reduce_sum(x, _axes(x, axes)) * share, node.output.shape)
    return y, (lambda dy: tf.broadcast_to(tf.reshape(dy * share, kept), shape_of(x)),)


def largest(node: Node, x: tf.Tensor, axes: Any) -> Result:
    """Equal maxima share the gradient evenly, as in TensorFlow."""
    kept = _kept(x, axes)
    axes = _axes(x, axes)
    y = tf.reduce_max(x, axes)

    def pullback(dy: tf.Tensor) -> tf.Tensor:
        # x ≤ y, so this is one at the maxima and zero elsewhere.
        maxima = 1.0 - nonzero(tf.reshape(y, kept) - x)
        count = tf.reduce_sum(maxima, axes, keepdims=True)
        return maxima * (tf.reshape(dy, kept) / count)

    return tf.reshape(y, node.output.shape), (pullback,)


def largest_place(node: Node, x: tf.Tensor, axis: Any) -> Result:
    return tf.argmax(x, int(axis), output_type=node.output.dtype), NO_GRADIENT


def _axes(x: tf.Tensor, axes: Any) -> list[int]:
    return sorted(int(axis) % len(x.shape) for axis in np.atleast_1d(axes))


def _kept(x: tf.Tensor, axes: Any) -> list[int]:
    """The shape of x with the reduced axes kept as ones."""
    reduced = _axes(x, axes)
    return [1 if axis in reduced else size for axis, size in enumerate(shape_of(x))]


RULES: dict[str, Rule] = {"Sum": total, "Mean": mean, "Max": largest, "ArgMax": largest_place}
