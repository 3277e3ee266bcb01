"""Losses and their gradients against Keras and TensorFlow's autodiff."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from toolkit.branch.learning import LossName, Supervised
from toolkit.training.losses import cross_entropy, huber, loss_of

RNG = np.random.default_rng(0)


def automatic(loss: Any, outputs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    x = tf.constant(outputs)
    with tf.GradientTape() as tape:
        tape.watch(x)
        losses = loss(x)
    return losses.numpy(), tape.gradient(losses, x).numpy()


def test_cross_entropy_is_keras() -> None:
    logits = RNG.normal(0, 3, (16, 10)).astype(np.float32)
    labels = RNG.integers(0, 10, 16).astype(np.int32)
    keras_loss = keras.losses.sparse_categorical_crossentropy
    wanted = automatic(lambda x: keras_loss(labels, x, from_logits=True), logits)
    for found, value in zip(cross_entropy(tf.constant(logits), labels), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


def test_a_label_of_minus_one_does_not_count() -> None:
    logits = tf.constant(RNG.normal(0, 3, (4, 5)).astype(np.float32))
    losses, gradient = cross_entropy(logits, tf.constant([1, -1, 2, -1]))
    assert losses.numpy()[[1, 3]].tolist() == [0.0, 0.0]
    assert not gradient.numpy()[[1, 3]].any()
    assert (losses.numpy()[[0, 2]] > 0).all()


@pytest.mark.parametrize(
    ("name", "keras_loss"),
    [
        ("mse", keras.losses.mean_squared_error),
        ("mae", keras.losses.mean_absolute_error),
        ("huber", keras.losses.huber),
    ],
)
def test_regression_losses_are_keras(name: LossName, keras_loss: Any) -> None:
    outputs = RNG.normal(0, 2, (16, 3)).astype(np.float32)
    targets = RNG.normal(0, 2, (16, 3)).astype(np.float32)
    wanted = automatic(lambda x: keras_loss(targets, x), outputs)
    found = loss_of(Supervised(name), tf.constant(outputs), tf.constant(targets))
    for mine, value in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, value, rtol=1e-5, atol=1e-6)


def test_huber_bends_at_delta() -> None:
    losses, gradient = huber(tf.constant([[3.0], [0.5]]), tf.constant([[0.0], [0.0]]), delta=2.0)
    assert losses.numpy().tolist() == [2.0 * (3.0 - 1.0), 0.125]
    assert gradient.numpy().ravel().tolist() == [2.0, 0.5]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_smoothed_and_binary_cross_entropies_are_keras(smoothing: float) -> None:
    logits = RNG.normal(0, 3, (16, 5)).astype(np.float32)
    labels = RNG.integers(0, 5, 16).astype(np.int32)
    rows = np.eye(5, dtype=np.float32)[labels]
    yes = RNG.integers(0, 2, (16, 5)).astype(np.float32)
    cases: list[tuple[LossName, Any, Any, Any]] = [
        ("cross_entropy", keras.losses.categorical_crossentropy, rows, labels),
        ("binary_cross_entropy", keras.losses.binary_crossentropy, yes, yes),
    ]
    for name, keras_loss, theirs, ours in cases:
        learning = Supervised(name, label_smoothing=smoothing)
        options = {"from_logits": True, "label_smoothing": smoothing}
        wanted = automatic(lambda x, f=keras_loss, t=theirs, o=options: f(t, x, **o), logits)
        found = loss_of(learning, tf.constant(logits), tf.constant(ours))
        for mine, value in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, value, rtol=1e-5, atol=1e-6)
