"""Losses that start a backward pass: each returns its value for each example, and its gradient.

An example may have many answers, which weigh the same. A label of -1 marks an answer that does not
count, so that the last batch of an evaluation can be filled up, and positions left out.
"""

from __future__ import annotations

import math

import tensorflow as tf

from toolkit.branch.learning import Supervised

_STEEP = 1e30  # an error beyond 1 / this has a sign


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_i = -1/P Σ_p Σ_c t_ipc · log softmax(z_ip)[c];  ∂L_i/∂z_ip = (softmax(z_ip) - t_ip) / P.

    t = onehot(y), or with smoothing s (1 - s) · onehot(y) + s / classes. P is the number of
    positions, those labelled -1 included: they add nothing to the sum.
    """
    if len(logits.shape) == 2:
        return _of_classes(logits, labels, smoothing)
    batch, positions, classes = logits.shape[0], math.prod(logits.shape[1:-1]), logits.shape[-1]
    flat = tf.reshape(logits, (batch * positions, classes))
    losses, gradient = _of_classes(flat, tf.reshape(labels, (batch * positions,)), smoothing)
    mean = tf.reduce_mean(tf.reshape(losses, (batch, positions)), -1)
    return mean, tf.reshape(gradient * (1.0 / positions), logits.shape)


def _of_classes(
    logits: tf.Tensor, labels: tf.Tensor, smoothing: float
) -> tuple[tf.Tensor, tf.Tensor]:
    classes = logits.shape[-1]
    wanted = tf.one_hot(labels, classes)
    counts = tf.reduce_sum(wanted, -1, keepdims=True)
    if smoothing:
        wanted = wanted * (1.0 - smoothing) + counts * (smoothing / classes)
    losses = -tf.reduce_sum(wanted * tf.nn.log_softmax(logits), -1)
    return losses, tf.nn.softmax(logits) * counts - wanted


def binary_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_i = mean_j (max(z, 0) - z·t + log(1 + e^-|z|));  ∂L_i/∂z_ij = (σ(z_ij) - t_ij) / n.

    With smoothing s, t ← (1 - s)·t + s/2.
    """
    wanted = targets * (1.0 - smoothing) + 0.5 * smoothing if smoothing else targets
    size = math.prod(logits.shape[1:])
    losses = tf.nn.relu(logits) - logits * wanted + tf.math.log(1.0 + tf.exp(-tf.abs(logits)))
    return mean_of_each(losses), (tf.sigmoid(logits) - wanted) * (1.0 / size)


def mean_absolute_error(outputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """L_i = mean_j |o_ij - t_ij|;  the gradient is the sign of the error, 0 where there is none."""
    error = outputs - targets
    sign = tf.clip_by_value(error * _STEEP, -1.0, 1.0)
    return mean_of_each(tf.abs(error)), sign * (1.0 / math.prod(outputs.shape[1:]))


def mean_squared_error(outputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """L_i = mean_j (o_ij - t_ij)²."""
    error = outputs - targets
    return mean_of_each(error * error), error * (2.0 / math.prod(outputs.shape[1:]))


def huber(
    outputs: tf.Tensor, targets: tf.Tensor, delta: float = 1.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """½e² while |e| ≤ δ, δ(|e| - ½δ) beyond; the gradient is e, clipped at ±δ."""
    error = outputs - targets
    clipped = tf.clip_by_value(error, -delta, delta)
    losses = clipped * (error - 0.5 * clipped)
    return mean_of_each(losses), clipped * (1.0 / math.prod(outputs.shape[1:]))


def mean_of_each(values: tf.Tensor) -> tf.Tensor:
    """The mean of each example's numbers."""
    if len(values.shape) > 2:
        values = tf.reshape(values, (values.shape[0], math.prod(values.shape[1:])))
    return tf.reduce_mean(values, -1)


def loss_of(
    learning: Supervised, outputs: tf.Tensor, targets: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss that the branch learns by, and its gradient."""
    match learning.loss:
        case "cross_entropy":
            return cross_entropy(outputs, targets, learning.label_smoothing)
        case "binary_cross_entropy":
            return binary_cross_entropy(outputs, targets, learning.label_smoothing)
        case "mse":
            return mean_squared_error(outputs, targets)
        case "mae":
            return mean_absolute_error(outputs, targets)
        case "huber":
            return huber(outputs, targets, learning.huber_delta)
