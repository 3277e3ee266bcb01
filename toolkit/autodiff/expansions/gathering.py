"""Gathering entries by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, cut, linear
from toolkit.errors import UnsupportedOp


def _gather(call: Call, x: tf.Tensor, places: Any, axis: Any) -> list[tf.Tensor] | None:
    """Rows by computed numbers are a basic operation; other axes are brought to the front.

    Entries by constant numbers are the product of a matrix of zeros and ones with x.
    """
    if call.attrs["batch_dims"]:
        raise UnsupportedOp(call.layer, call.op, "entries that differ within a batch")
    (at,) = call.numbers(axis)
    at %= len(x.shape)
    if isinstance(places, np.ndarray):
        return [tf.reshape(_chosen(x, at, np.ravel(places)), call.shapes[0])]
    if at == 0:
        return None
    order = [at, *(i for i in range(len(x.shape)) if i != at)]
    rows = tf.gather(tf.transpose(x, order), places)
    rank = len(places.shape)
    before = [rank + i for i in range(at)]
    after = [rank + i for i in range(at, len(x.shape) - 1)]
    return [tf.transpose(rows, [*before, *range(rank), *after])]


def _chosen(x: tf.Tensor, axis: int, places: Any) -> tf.Tensor:
    size = x.shape[axis]
    if set(np.diff(places)) <= {1}:  # neighbours are a slice
        first = int(places[0]) % size
        return cut(x, axis, first, first + len(places))
    return linear(np.eye(size, dtype=np.float32)[places], x, axis)


def _one_hot(call: Call, places: tf.Tensor, depth: Any, on: Any, off: Any) -> list[tf.Tensor]:
    axis = call.attrs["axis"] % len(call.shapes[0])
    shape = [1] * len(call.shapes[0])
    (shape[axis],) = call.numbers(depth)
    numbers = np.reshape(np.arange(shape[axis], dtype=places.dtype.as_numpy_dtype), shape)
    return [tf.where(tf.equal(tf.expand_dims(places, axis), numbers), on, off)]


EXPANSIONS: dict[str, Expansion] = {"GatherV2": _gather, "OneHot": _one_hot}
