"""Our optimisers against Keras' own, over several steps with their state."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from toolkit.bench.step.reference import keras_optimizer
from toolkit.branch.optimizers import SGD, Adam, AdamW, Optimizer, RMSProp
from toolkit.branch.schedules import (
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstant,
    PolynomialDecay,
    Schedule,
)


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(learning_rate=0.1),
        SGD(learning_rate=0.05, momentum=0.9),
        Adam(learning_rate=0.01),
        Adam(learning_rate=0.01, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
        RMSProp(learning_rate=0.01),
        RMSProp(learning_rate=0.01, rho=0.7, decay=0.1),
        SGD(learning_rate=0.05, momentum=0.9, nesterov=True),
        SGD(learning_rate=0.1, nesterov=True),
        SGD(learning_rate=0.1, weight_decay=0.5),
        AdamW(learning_rate=0.01),
        AdamW(learning_rate=0.1, weight_decay=0.2),
        RMSProp(learning_rate=0.1, weight_decay=0.2),
    ],
    ids=repr,
)
def test_ten_steps_are_keras(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(0)
    theta = rng.normal(size=50).astype(np.float32)
    variable = keras.Variable(theta)
    counterpart = keras_optimizer(optimizer)
    counterpart.build([variable])
    slots: Mapping[str, Any] = {slot: tf.zeros(50) for slot in optimizer.slots}
    for step in range(10):
        gradient = rng.normal(size=50).astype(np.float32)
        counterpart.apply([tf.constant(gradient)], [variable])
        at = tf.constant(float(step))
        change, slots = optimizer.update(tf.constant(gradient), slots, at)
        kept = 1.0 - np.asarray(optimizer.rate(at)) * optimizer.weight_decay
        theta = theta * kept + change.numpy()
        np.testing.assert_allclose(theta, variable.numpy(), rtol=1e-5, atol=1e-6)


def test_state_matters() -> None:
    """With forgotten slots the second step would repeat the first."""
    gradient, step = tf.ones(1), tf.constant(0.0)
    first, slots = SGD(0.1, momentum=0.9).update(gradient, {"velocity": tf.zeros(1)}, step)
    second, _ = SGD(0.1, momentum=0.9).update(gradient, slots, step + 1)
    np.testing.assert_allclose([first[0], second[0]], [-0.1, -0.19], rtol=1e-6)


SCHEDULES = keras.optimizers.schedules


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ExponentialDecay(0.1, 4, 0.5), SCHEDULES.ExponentialDecay(0.1, 4, 0.5)),
        (ExponentialDecay(0.1, 4, 0.5, True), SCHEDULES.ExponentialDecay(0.1, 4, 0.5, True)),
        (InverseTimeDecay(0.1, 4, 0.5), SCHEDULES.InverseTimeDecay(0.1, 4, 0.5)),
        (InverseTimeDecay(0.1, 4, 0.5, True), SCHEDULES.InverseTimeDecay(0.1, 4, 0.5, True)),
        (PolynomialDecay(0.1, 9, 0.01, 2.0), SCHEDULES.PolynomialDecay(0.1, 9, 0.01, 2.0)),
        (CosineDecay(0.1, 9, 0.1), SCHEDULES.CosineDecay(0.1, 9, 0.1)),
        (
            CosineDecay(0.1, 9, 0.1, 0.4, 5),
            SCHEDULES.CosineDecay(0.1, 9, 0.1, warmup_target=0.4, warmup_steps=5),
        ),
        (
            PiecewiseConstant((3, 7), (0.4, 0.2, 0.1)),
            SCHEDULES.PiecewiseConstantDecay([3, 7], [0.4, 0.2, 0.1]),
        ),
    ],
    ids=lambda schedule: schedule.__class__.__name__,
)
def test_schedules_are_keras(ours: Schedule, theirs: Any) -> None:
    for step in range(17):
        wanted = np.asarray(theirs(step))
        found = SGD(ours).rate(tf.constant(float(step)))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
