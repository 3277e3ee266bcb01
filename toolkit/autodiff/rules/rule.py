"""What a rule is: how to compute an operation, and how gradients pass back through it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

# Maps the gradient of an operation's output to the gradient of one of its inputs.
Pullback = Callable[[tf.Tensor], tf.Tensor]
Pullbacks = tuple[Pullback | None, ...]
# (node, *inputs) → (output, one pullback per input that can be differentiated).
Rule = Callable[..., tuple[tf.Tensor, Pullbacks]]

NO_GRADIENT: Pullbacks = ()
_HUGE = 3e38  # nearly the largest float32
_WIDEST = 5  # XNNPACK takes no CONCATENATION of more tensors


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The static shape of a tensor or numpy array."""
    return tuple(int(n) for n in tensor.shape)


def unbroadcast(gradient: tf.Tensor, like: Any) -> tf.Tensor:
    """Sums a gradient over the axes along which `like` was broadcast."""
    target, full = shape_of(like), shape_of(gradient)
    if target == full:
        return gradient
    lead = len(full) - len(target)
    axes = [i for i in range(len(full)) if i < lead or (target[i - lead] == 1 and full[i] != 1)]
    return tf.reshape(tf.reduce_sum(gradient, axes), target)


def sum_of(parts: Iterable[tf.Tensor]) -> tf.Tensor:
    """A chain of ADDs, which XNNPACK takes; it does not take ADD_N."""
    return functools.reduce(operator.add, parts)


def concatenated(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """A tree of CONCATENATIONs, none of which is too wide for XNNPACK."""
    while len(parts) > 1:
        runs = [parts[i : i + _WIDEST] for i in range(0, len(parts), _WIDEST)]
        parts = [tf.concat(run, axis) if len(run) > 1 else run[0] for run in runs]
    return parts[0]


def nonzero(x: tf.Tensor) -> tf.Tensor:
    """1 where x > 0 and 0 where x = 0, for x ≥ 0: one multiplication with a fused clip.

    SIGN would do, but XNNPACK does not take it, and casting a comparison costs six times more.
    """
    return tf.clip_by_value(x * _HUGE, -1.0, 1.0)


def product(a: tf.Tensor, b: tf.Tensor, *, transpose_a: bool = False) -> tf.Tensor:
    """A matrix product that stays one BATCH_MATMUL, the fast one with variable weights.

    The converter would put what surrounds a product of two matrices into it: rows become batches,
    each multiplied alone, or it becomes FULLY_CONNECTED. A batch of one keeps it from that. There
    is no transposed b, which tflite-runtime multiplies three times slower.
    """
    alone = len(a.shape) == 2
    if alone:
        a, b = tf.reshape(a, [1, *a.shape]), tf.reshape(b, [1, *b.shape])
    y = tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transpose_a)
    return tf.reshape(y, y.shape[1:]) if alone else y
