"""Losses that start a backward pass: each returns its value and its gradient.

A label of -1 marks a row that does not count, so that the last batch of an evaluation can be
filled up.
"""

from __future__ import annotations

import tensorflow as tf


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """L_i = -log softmax(z_i)[y_i];  ∂L_i/∂z_i = softmax(z_i) - onehot(y_i)."""
    wanted = tf.one_hot(labels, logits.shape[-1])
    counts = tf.reduce_sum(wanted, -1, keepdims=True)
    losses = -tf.reduce_sum(wanted * tf.nn.log_softmax(logits), -1)
    return losses, tf.nn.softmax(logits) * counts - wanted


def mean_squared_error(outputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """L_i = mean_j (o_ij - t_ij)²."""
    error = outputs - targets
    return tf.reduce_mean(error * error, -1), error * (2.0 / outputs.shape[-1])


def huber(
    outputs: tf.Tensor, targets: tf.Tensor, delta: float = 1.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """½e² while |e| ≤ δ, δ(|e| - ½δ) beyond; the gradient is e, clipped at ±δ."""
    error = outputs - targets
    clipped = tf.clip_by_value(error, -delta, delta)
    losses = clipped * (error - 0.5 * clipped)
    return tf.reduce_mean(losses, -1), clipped * (1.0 / outputs.shape[-1])


LOSSES = {"cross_entropy": cross_entropy, "mse": mean_squared_error, "huber": huber}
