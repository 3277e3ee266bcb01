"""Dropout: the device draws its own numbers, and the gradient sees the mask of its forward pass."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from keras import layers

from toolkit.autodiff import Program, run, trace
from toolkit.autodiff.naming import named_variables
from toolkit.branch.layers import BranchDropout

Array = npt.NDArray[np.float32]
Build = Callable[[keras.KerasTensor], keras.KerasTensor]
Step = Callable[[Array], tuple[Array, Array]]

BATCH, WIDTH = 64, 50


class Scale(layers.Layer):
    """x · weight: the weight's gradient is x · dy, so it is the mask if x and dy are ones."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.scale = self.add_weight(shape=(BATCH, *shape[1:]), initializer="ones", name="scale")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.scale


def traced(layer: Build, *shape: int, training: bool = True) -> tuple[Program, Step]:
    """The program of a Scale and the layer, and a function to (output, gradient of the scale)."""
    x = keras.Input(batch_shape=(BATCH, *shape))
    model = keras.Model(x, layer(Scale(name="input")(x)))
    program = trace(model, batch=BATCH, training=training)
    weights = {name: tf.constant(v) for name, v in named_variables(model).items()}

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tape = run(program, weights, x)
        y = tape[program.y]
        return y, tape.gradients({program.y: tf.ones_like(y)}, ("input/scale",))["input/scale"]

    def computed(x: Array) -> tuple[Array, Array]:
        y, gradient = step(tf.constant(x))
        return np.asarray(y), np.asarray(gradient)

    return program, computed


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.8])
def test_survivors_are_scaled_and_the_gradient_has_the_same_mask(rate: float) -> None:
    _, step = traced(layers.Dropout(rate), WIDTH)
    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)
    y, gradient = step(x)
    kept = y != 0
    np.testing.assert_allclose(y, np.where(kept, x / (1 - rate), 0), rtol=1e-6)
    np.testing.assert_allclose(gradient, y, rtol=1e-6)  # both are x · mask / (1 - rate)
    # Of n = 3200 numbers, a share of rate ± 4 standard deviations √(rate·(1-rate)/n).
    assert abs(np.mean(~kept) - rate) < 4 * np.sqrt(rate * (1 - rate) / x.size)


def test_every_step_draws_anew() -> None:
    _, step = traced(layers.Dropout(0.5), WIDTH)
    ones = np.ones((BATCH, WIDTH), np.float32)
    masks = [step(ones)[0] != 0 for _ in range(3)]
    # Independent fair coins agree in half of all places.
    for a, b in [(0, 1), (1, 2), (0, 2)]:
        assert 0.4 < np.mean(masks[a] == masks[b]) < 0.6


def test_two_layers_draw_apart() -> None:
    def both(x: keras.KerasTensor) -> keras.KerasTensor:
        return layers.Concatenate()([layers.Dropout(0.5, name=name)(x) for name in ("one", "two")])

    _, step = traced(both, WIDTH)
    one, two = np.split(step(np.ones((BATCH, WIDTH), np.float32))[0] != 0, 2, axis=1)
    assert 0.4 < np.mean(one == two) < 0.6


def test_no_dropout_in_inference() -> None:
    program, step = traced(layers.Dropout(0.5), WIDTH, training=False)
    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)
    assert not any("Random" in node.op for node in program.nodes)
    np.testing.assert_array_equal(step(x)[0], x)


def test_spatial_dropout_drops_whole_channels() -> None:
    _, step = traced(layers.SpatialDropout2D(0.5), 3, 3, 8)
    y, gradient = step(np.ones((BATCH, 3, 3, 8), np.float32))
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1, :1], y.shape))
    assert set(np.unique(y)) == {0.0, 2.0}
    np.testing.assert_array_equal(gradient, y)


@pytest.mark.parametrize("shape", [(WIDTH,), (4, 3, 2)])
@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_branch_dropout_drops_whole_examples(shape: Any, rate: float) -> None:
    _, step = traced(BranchDropout(rate), *shape)
    x = np.random.default_rng(0).uniform(1, 2, (BATCH, *shape)).astype(np.float32)
    dropped = []
    for _ in range(10):
        y, gradient = step(x)
        rows = y.reshape(BATCH, -1) == 0
        np.testing.assert_array_equal(rows.all(1), rows.any(1))
        kept = (~rows.any(1)).reshape(BATCH, *[1] * len(shape))
        np.testing.assert_allclose(y, kept * x / np.float32(1 - rate), rtol=1e-6)
        np.testing.assert_allclose(gradient, y, rtol=1e-6)
        dropped.append(rows.all(1))
    assert abs(np.mean(dropped) - rate) < 4 * np.sqrt(rate * (1 - rate) / np.size(dropped))
    assert np.any(dropped[0] != dropped[1])


def test_branch_dropout_says_what_its_rate_may_be() -> None:
    with pytest.raises(ValueError, match=r"rate is 1\.0; it must be at least 0 and below 1\."):
        BranchDropout(1.0)


def test_noise_is_added_and_does_not_change_the_gradient() -> None:
    _, step = traced(layers.GaussianNoise(0.5), WIDTH)
    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)
    y, gradient = step(x)
    np.testing.assert_array_equal(gradient, x)
    assert abs(np.std(y - x) - 0.5) < 0.05
