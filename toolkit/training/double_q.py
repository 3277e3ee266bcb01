"""The target and the loss of double deep Q-learning."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from toolkit.autodiff.rules.rule import nonzero
from toolkit.training.losses import huber


def double_q_target(
    reward: tf.Tensor,
    done: tf.Tensor,
    online_ahead: tf.Tensor,
    target_ahead: tf.Tensor,
    discount: float,
) -> tf.Tensor:
    """r + γ·(1 - done)·Q(s', argmax_a Q(s', a; θ); θ⁻), as a column."""
    value = tf.reduce_sum(target_ahead * first_maximum(online_ahead), -1, keepdims=True)
    reward, done = tf.reshape(reward, value.shape), tf.reshape(done, value.shape)
    return reward + discount * (1.0 - done) * value


def double_q_loss(
    q: tf.Tensor, action: tf.Tensor, target: tf.Tensor, delta: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """huber(Q(s, a; θ) - target) per example, and its gradient with respect to all of Q(s)."""
    taken = tf.one_hot(action, q.shape[-1])
    losses, gradient = huber(tf.reduce_sum(q * taken, -1, keepdims=True), target, delta)
    return losses, taken * gradient


def first_maximum(q: tf.Tensor) -> tf.Tensor:
    """onehot(argmax q), of equal ones the first; ARG_MAX would cut the graph that XNNPACK takes."""
    maxima = 1.0 - nonzero(tf.reduce_max(q, -1, keepdims=True) - q)
    earlier = tf.matmul(maxima, np.triu(np.ones([q.shape[-1]] * 2, np.float32), 1))
    return maxima * tf.nn.relu(1.0 - earlier)
