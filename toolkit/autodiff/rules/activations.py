"""Activation functions."""

from __future__ import annotations

import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import Pullbacks, Rule, nonzero

Result = tuple[tf.Tensor, Pullbacks]


def relu(_: Node, x: tf.Tensor) -> Result:
    y = tf.nn.relu(x)
    return y, (lambda dy: dy * nonzero(y),)


def relu6(_: Node, x: tf.Tensor) -> Result:
    y = tf.nn.relu6(x)  # passes the gradient where 0 < y < 6
    return y, (lambda dy: dy * nonzero(y * (6.0 - y)),)


def leaky_relu(node: Node, x: tf.Tensor) -> Result:
    slope = float(node.attrs["alpha"])
    positive = tf.nn.relu(x)
    return tf.nn.leaky_relu(x, slope), (
        lambda dy: dy * (slope + (1.0 - slope) * nonzero(positive)),
    )


def elu(_: Node, x: tf.Tensor) -> Result:
    y = tf.nn.elu(x)  # eˣ - 1 below zero, so its slope there is y + 1
    return y, (lambda dy: dy * (1.0 + tf.minimum(y, 0.0)),)


def sigmoid(_: Node, x: tf.Tensor) -> Result:
    y = tf.sigmoid(x)
    return y, (lambda dy: dy * (y * (1.0 - y)),)


def tanh(_: Node, x: tf.Tensor) -> Result:
    y = tf.tanh(x)
    return y, (lambda dy: dy * (1.0 - y * y),)


def softplus(_: Node, x: tf.Tensor) -> Result:
    y = tf.nn.relu(x) + tf.math.log(1.0 + tf.exp(-tf.abs(x)))
    return y, (lambda dy: dy * tf.sigmoid(x),)


def softmax(_: Node, x: tf.Tensor) -> Result:
    y = tf.nn.softmax(x)  # dx = y ⊙ (dy - Σ dy ⊙ y)
    return y, (lambda dy: y * (dy - tf.reduce_sum(dy * y, -1, keepdims=True)),)


RULES: dict[str, Rule] = {
    "Relu": relu,
    "Relu6": relu6,
    "LeakyRelu": leaky_relu,
    "Elu": elu,
    "Sigmoid": sigmoid,
    "Tanh": tanh,
    "Softplus": softplus,
    "Softmax": softmax,
}
