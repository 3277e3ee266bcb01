"""What a rule is: how to compute an operation, and how gradients pass back through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Maps the gradient of an operation's output to the gradient of one of its inputs.
Pullback = Callable[[tf.Tensor], tf.Tensor]
Pullbacks = tuple[Pullback | None, ...]
# (node, *inputs) → (output, one pullback per input that can be differentiated).
Rule = Callable[..., tuple[tf.Tensor, Pullbacks]]

NO_GRADIENT: Pullbacks = ()


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


def product(
    a: tf.Tensor, b: tf.Tensor, *, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """A matrix product that stays a BATCH_MATMUL, the fast one with variable weights."""
    return tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transpose_a, adj_y=transpose_b)
