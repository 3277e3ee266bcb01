"""Reductions and running sums along axes."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, cut, linear


def _smallest(call: Call, x: tf.Tensor, axes: Any) -> list[tf.Tensor]:
    return [-tf.reduce_max(-x, call.numbers(axes), keepdims=call.attrs["keep_dims"])]


def _any(call: Call, x: tf.Tensor, axes: Any) -> list[tf.Tensor]:
    largest = tf.reduce_max(
        tf.cast(x, "float32"), call.numbers(axes), keepdims=call.attrs["keep_dims"]
    )
    return [tf.greater(largest, 0.5)]


def _all(call: Call, x: tf.Tensor, axes: Any) -> list[tf.Tensor]:
    keep = call.attrs["keep_dims"]
    return [tf.logical_not(tf.reduce_any(tf.logical_not(x), call.numbers(axes), keepdims=keep))]


def _product(call: Call, x: tf.Tensor, axes: Any) -> list[tf.Tensor]:
    """The factors one by one."""
    for axis in (n % len(x.shape) for n in call.numbers(axes)):
        parts = [cut(x, axis, i, i + 1) for i in range(x.shape[axis])]
        x = functools.reduce(operator.mul, parts)
    return [tf.reshape(x, call.shapes[0])]


def _running_sum(call: Call, x: tf.Tensor, axis: Any) -> list[tf.Tensor]:
    """y = T·x, T a triangle of ones."""
    (at,) = call.numbers(axis)
    at %= len(x.shape)
    triangle = np.tri(x.shape[at], k=-int(call.attrs["exclusive"]), dtype=np.float32)
    return [linear(triangle.T if call.attrs["reverse"] else triangle, x, at)]


def _log_softmax(_: Call, x: tf.Tensor) -> list[tf.Tensor]:
    """x - max - ln Σ e^(x - max); the maximum, a mere shift, needs no gradient."""
    shifted = x - tf.stop_gradient(tf.reduce_max(x, -1, keepdims=True))
    return [shifted - tf.math.log(tf.reduce_sum(tf.exp(shifted), -1, keepdims=True))]


def _smallest_place(call: Call, x: tf.Tensor, axis: Any) -> list[tf.Tensor]:
    return [tf.argmax(-x, call.numbers(axis)[0], output_type=call.attrs["output_type"])]


EXPANSIONS: dict[str, Expansion] = {
    "Min": _smallest,
    "Any": _any,
    "All": _all,
    "Prod": _product,
    "Cumsum": _running_sum,
    "LogSoftmax": _log_softmax,
    "ArgMin": _smallest_place,
}
