"""What an expansion is: an operation, written in others that have rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.errors import UnsupportedOp


@dataclass(frozen=True)
class Call:
    """One operation of a traced graph: its kind, its layer, its attributes, its outputs' shapes."""

    op: str
    layer: str
    attrs: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]

    def numbers(self, setting: Any) -> list[int]:
        """An input that shapes the graph itself, as whole numbers."""
        if not isinstance(setting, np.ndarray):
            raise UnsupportedOp(self.layer, self.op, "a setting that is computed")
        return [int(n) for n in np.ravel(setting)]


# (call, *inputs) → what stands for the outputs, or None: it is a basic operation as it is.
# Inputs that are constants arrive as numpy arrays.
Expansion = Callable[..., Sequence[tf.Tensor] | None]


def one(function: Callable[..., tf.Tensor]) -> Expansion:
    """The expansion of an operation with one output by a formula of its inputs alone."""
    return lambda _, *inputs: [function(*inputs)]


def cut(x: tf.Tensor, axis: int, start: int, end: int) -> tf.Tensor:
    """A plain slice along one axis."""
    everything = (slice(None),) * axis
    return x[(*everything, slice(int(start), int(end)))]


def linear(matrix: npt.NDArray[np.float32], x: tf.Tensor, axis: int) -> tf.Tensor:
    """A constant matrix [m, n] times x along its axis of n: the axis is brought to the front."""
    order = [axis, *(i for i in range(len(x.shape)) if i != axis)]
    front = tf.transpose(x, order)
    product = tf.matmul(matrix, tf.reshape(front, [x.shape[axis], -1]))
    product = tf.reshape(product, [len(matrix), *front.shape[1:]])
    return tf.transpose(product, np.argsort(order))
