"""Compares a Keras model's gradients by our rules with TensorFlow's own."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import layers

from toolkit.autodiff import Tape, run, trace
from toolkit.autodiff.lower import Choice, Layer, Tuning, lower
from toolkit.autodiff.naming import named_variables
from toolkit.autodiff.rules.formulations import FORMULATIONS

Array = npt.NDArray[np.float32]
Build = Callable[[keras.KerasTensor], keras.KerasTensor]

BATCH = 2
TOLERANCE = 1e-4  # of a tensor's largest entry
NOTHING = 1e-6  # a tensor whose entries are all below this is zero up to rounding


class Shift(layers.Layer):
    """Adds a weight as large as the whole batch; its gradient is that of the next layer's input."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.shift = self.add_weight(shape=(BATCH, *shape[1:]), initializer="zeros", name="shift")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.shift


def around(build: Build, *shape: int) -> keras.Model:
    """A model of a Shift and what is tested."""
    x = keras.Input(batch_shape=(BATCH, *shape))
    return keras.Model(x, build(Shift(name="input")(x)))


def normal(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def steps(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Few different values, so that windows are full of ties."""
    return np.random.default_rng(seed).integers(-1, 3, shape).astype(np.float32)


def assert_close(found: tf.Tensor, expected: tf.Tensor, name: str) -> None:
    found, expected = (np.asarray(tf.convert_to_tensor(x)) for x in (found, expected))
    assert found.shape == expected.shape, name
    scale, error = np.max(np.abs(expected)), np.max(np.abs(found - expected))
    assert error <= (TOLERANCE * scale if scale > NOTHING else NOTHING), (name, error, scale)


def randomise(model: keras.Model, seed: int) -> None:
    """Zeros and ones, as biases and scales start, would hide a wrong gradient."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        if not variable.path.startswith("input"):
            variable.assign(rng.normal(scale=0.5, size=variable.shape))


class Always(Tuning):
    """The same formulation for every layer, in parts of one example."""

    def choose(self, layer: Layer) -> Choice:
        return Choice(self.runtime, part_bytes=1)


def check(
    model: keras.Model,
    x: Array | None = None,
    seed: int = 0,
    *,
    reference: Any = None,
    formulations: Iterable[str] = FORMULATIONS,
) -> Tape:
    """Output, gradients and moved statistics, by some formulations; answers the last tape.

    A reference is a model with the same variables that TensorFlow can differentiate.
    """
    x = normal(model.input_shape, seed) if x is None else x
    randomise(model, seed + 1)
    names = {v.path: name for name, v in named_variables(model).items()}
    trainable = tuple(names[v.path] for v in model.trainable_variables)
    before = {name: tf.constant(v) for name, v in named_variables(model).items()}
    dy = normal(model.output_shape, seed + 2)
    with tf.GradientTape() as keras_tape:
        y = (reference or model)(x, training=True)
    expected = keras_tape.gradient(y, model.trainable_variables, tf.constant(dy))
    program = trace(model, batch=BATCH, training=True)
    kinds = {node.op for node in program.nodes}
    for formulation in formulations if "Conv2D" in kinds else ["columns"]:
        tape = run(lower(program, Always(formulation)), before, tf.constant(x))
        found = tape.gradients({program.y: tf.constant(dy)}, trainable)
        assert_close(tape[program.y], y, f"output by {formulation}")
        for name, gradient in zip(trainable, expected, strict=True):
            assert_close(found[name], gradient, f"{name} by {formulation}")
        for name, value in tape.updates().items():
            assert_close(value, named_variables(model)[name], f"{name} by {formulation}")
    return tape
