"""`--update auto`: what tensors are worth, what they cost, and the choice within limits."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from toolkit.autodiff.naming import named_variables
from toolkit.branch.branch import Branch
from toolkit.updating.choosing import Limits, choose
from toolkit.updating.costs import Costs, costs_of, totals
from toolkit.updating.uses import uses

EXAMPLES = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32)
HEAD = {"head/kernel", "head/bias"}
STEM, UPPER = 8 * 8 * 3 * 3 * 4, 6 * 6 * 3 * 3 * 4 * 6  # multiply-accumulates; head 6 · 3
NO_LIMIT = 1e18


@pytest.fixture(scope="module")
def branch() -> Branch:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 1))
    y = layers.Conv2D(4, 3, padding="same", name="stem")(x)
    y = layers.ReLU()(layers.BatchNormalization(name="norm")(y))
    y = layers.Conv2D(6, 3, name="upper")(y)
    y = layers.GlobalAveragePooling2D()(y)
    return Branch("planned", keras.Model(x, layers.Dense(3, name="head")(y)), ("stem",))


@pytest.fixture(scope="module")
def costs(branch: Branch) -> Costs:
    return costs_of(branch, branch.trainable_names)


def test_uses_are_halved_mean_squares_of_tensorflows_gradients(branch: Branch) -> None:
    found = uses(branch, EXAMPLES)
    assert found.keys() == set(branch.trainable_names)
    draws, total = np.random.default_rng(0), 0.0
    for example in EXAMPLES:
        with tf.GradientTape() as tape:
            logits = branch.model(example[None], training=False)
            shares = tf.nn.softmax(logits)[0].numpy()
            label = int(np.searchsorted(np.cumsum(shares), np.float32(draws.random())))
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits([label], logits)
        gradient = tape.gradient(loss, named_variables(branch.model)["upper/kernel"].value)
        total += float(tf.reduce_sum(gradient**2)) / 2 / len(EXAMPLES)
    assert found["upper/kernel"] == pytest.approx(total, rel=1e-4)


def test_costs_count_passes_and_what_gradients_are_computed_from(costs: Costs) -> None:
    by_name = {c.name: c for c in costs.candidates}
    assert by_name.keys() == HEAD | {"stem/kernel", "stem/bias", "norm/beta"} | {
        "upper/kernel",
        "upper/bias",
    }
    assert costs.whole == 3 * (STEM + UPPER + 18)
    operations, kept, state = totals(costs, {"upper/kernel": by_name["upper/kernel"]})
    assert operations == 0.25 * STEM + (UPPER + 18) + 18 + UPPER
    assert kept == 4 * 8 * 8 * 4 + 2 * 4 * 6 * 6 * 6  # its input; a gradient in and out
    assert state == 4 * 6 * 216  # value, gradient, its sum, a new value and Adam's two slots
    _, kept, _ = totals(costs, {"norm/beta": by_name["norm/beta"]})
    assert kept == 4 * 8 * 8 * 4 + 2 * 4 * 8 * 8 * 4  # the result of the activation above


def test_the_choice_keeps_to_both_limits_and_takes_the_most_useful(
    branch: Branch, costs: Costs
) -> None:
    use = uses(branch, EXAMPLES)
    assert choose(costs, use, Limits(0, NO_LIMIT)).names == HEAD
    assert choose(costs, use, Limits(NO_LIMIT, 0)).names == HEAD
    everything = choose(costs, use, Limits(NO_LIMIT, NO_LIMIT))
    assert everything.names == set(branch.trainable_names) - {"norm/gamma"}
    assert everything.use == pytest.approx(1)
    only = dict.fromkeys(use, 0.0) | {"upper/kernel": 1.0}
    limits = Limits(0.9 * costs.whole, NO_LIMIT)
    found = choose(costs, only, limits)
    assert "upper/kernel" in found.names
    assert found.operations <= limits.operations
    # 4 examples: the kernel's input of 1,024 bytes, gradients of 1,728, and the state.
    tight = choose(costs, only, Limits(NO_LIMIT, found.bytes - 1))
    assert tight.bytes < found.bytes
