"""The same training step in ordinary TensorFlow: Keras, GradientTape, Keras' optimisers.

The product does not use it. Tests compare with it, and the benchmark times it, compiled by
TensorFlow and converted to TFLite with the Flex delegate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ, Supervised
from toolkit.branch.optimizers import SGD, Adam, Optimizer, RMSProp

_LOSSES = {
    "cross_entropy": keras.losses.sparse_categorical_crossentropy,
    "mse": keras.losses.mean_squared_error,
    "huber": keras.losses.huber,
}
Network = Callable[..., Any]  # answers an output, or all outputs that have a loss: its own first


class Reference(tf.Module):  # type: ignore[misc]
    """A branch that trains in TensorFlow; `train` has the inputs of the signature `train`."""

    def __init__(self, branch: Branch, *, training: bool = True) -> None:
        super().__init__()
        self.branch = branch
        self.model = branch.model
        self.online = _with_early_output(branch)
        self.training = training  # False: without dropout
        self.optimizer = keras_optimizer(branch.learning.optimizer)
        self.optimizer.build(self.model.trainable_variables)
        self.target = keras.models.clone_model(self.model)
        self.target.set_weights(self.model.get_weights())

    def train(self, **batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(self.online, self.target, **batch)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss

    def gradients(self, **batch: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = self.loss(self.online, self.target, **batch)
        return list(tape.gradient(loss, self.model.trainable_variables))

    def loss(self, online: Network, target: Network, **batch: tf.Tensor) -> tf.Tensor:
        """Returns the branch's loss, with any callable in place of its network."""
        if isinstance(self.branch.learning, DoubleQ):
            return self._double_q(self.branch.learning, online, target, **batch)
        return self._supervised(self.branch.learning, online, **batch)

    def _supervised(
        self, learning: Supervised, network: Network, x: tf.Tensor, y: tf.Tensor | None = None
    ) -> tf.Tensor:
        if y is None:  # an autoencoder
            y = self._scaled(x)
        output, *early = keras.tree.flatten(network(self._scaled(x), training=self.training))
        loss = _LOSSES[learning.loss]
        if learning.loss != "cross_entropy":
            return sum(tf.reduce_mean(loss(y, found)) for found in (output, *early))
        from_logits = self.model.layers[-1].name != "softmax"
        total = tf.reduce_mean(loss(y, output, from_logits=from_logits))
        return total + sum(tf.reduce_mean(loss(y, found, from_logits=True)) for found in early)

    def _double_q(
        self,
        learning: DoubleQ,
        online: Network,
        target: Network,
        obs: tf.Tensor,
        action: tf.Tensor,
        reward: tf.Tensor,
        next_obs: tf.Tensor,
        done: tf.Tensor,
    ) -> tf.Tensor:
        ahead = self._scaled(next_obs)
        now, later = (keras.tree.flatten(network(ahead))[0] for network in (online, target))
        best = tf.argmax(now, -1, output_type=tf.int32)
        future = tf.gather(later, best, batch_dims=1)
        wanted = tf.stop_gradient(reward + learning.discount * (1.0 - done) * future)
        total = 0.0
        for values in keras.tree.flatten(online(self._scaled(obs), training=self.training)):
            q = tf.gather(values, action, batch_dims=1)
            losses = keras.losses.huber(wanted[:, None], q[:, None], delta=learning.huber_delta)
            total += tf.reduce_mean(losses)
        return total

    def _scaled(self, x: tf.Tensor) -> tf.Tensor:
        return tf.cast(x, tf.float32) * self.branch.input_scale


def _with_early_output(branch: Branch) -> keras.Model:
    """Returns the branch's network, with the same layers, and its early output as another one."""
    if branch.early_output is None:
        return branch.model
    early = branch.model.get_layer(branch.early_output).output
    return keras.Model(branch.model.inputs, [branch.model.output, early])


def keras_optimizer(optimizer: Optimizer) -> keras.optimizers.Optimizer:
    """Returns Keras' version of one of our optimisers."""
    limits = ("weight_decay", "clipvalue", "clipnorm", "global_clipnorm")
    more = {name: getattr(optimizer, name) or None for name in limits}
    match optimizer:
        case SGD(learning_rate=rate, momentum=momentum, nesterov=nesterov):
            return keras.optimizers.SGD(rate, momentum=momentum, nesterov=nesterov, **more)
        case Adam(learning_rate=rate, beta_1=b1, beta_2=b2, epsilon=epsilon):
            return keras.optimizers.Adam(rate, beta_1=b1, beta_2=b2, epsilon=epsilon, **more)
        case RMSProp(learning_rate=rate, rho=rho, epsilon=epsilon, decay=decay):
            schedule = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
            return keras.optimizers.RMSprop(schedule, rho=rho, epsilon=epsilon, **more)
    raise TypeError(f"Keras has no counterpart of {optimizer!r}")
