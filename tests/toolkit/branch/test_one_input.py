"""Networks of several inputs: one row of numbers in, the same answers and gradients out."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from toolkit.autodiff import run
from toolkit.autodiff.lower import lower
from toolkit.autodiff.naming import named_variables
from toolkit.branch.branch import Branch
from toolkit.branch.one_input import as_rows, one_input
from toolkit.branch.stored import read_branch, write_branch
from toolkit.errors import ModelError
from toolkit.tuning.files import shipped


def two_inputs() -> keras.Model:
    keras.utils.set_random_seed(0)
    image, numbers = keras.Input((4, 4, 2)), keras.Input((3,))
    seen = layers.Flatten()(layers.Conv2D(3, 2, activation="relu", name="stem")(image))
    both = layers.Concatenate()([seen, layers.Dense(2, name="beside")(numbers)])
    model = keras.Model([image, numbers], layers.Dense(3, name="head")(both), name="mine")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


RNG = np.random.default_rng(0)
INPUTS = [RNG.normal(size=shape).astype(np.float32) for shape in [(5, 4, 4, 2), (5, 3)]]


def test_answers_and_gradients_are_those_of_the_network() -> None:
    model = two_inputs()
    wrapped = one_input(model)
    assert wrapped.compiled
    rows = as_rows(model, INPUTS)
    assert rows.shape == (5, 35)
    branch = Branch("two", wrapped, ("stem",))
    program = lower(branch.trace(batch=5, training=True), shipped("ai-edge-litert"))
    weights = {name: tf.constant(v) for name, v in named_variables(wrapped).items()}
    tape = run(program, weights, tf.constant(rows))
    with tf.GradientTape() as reference:
        expected = model(INPUTS)
    np.testing.assert_allclose(tape[program.y], expected, rtol=1e-5, atol=1e-6)
    seed = tf.ones_like(expected)
    found = tape.gradients({program.y: seed}, branch.trainable_names)
    wanted = reference.gradient(expected, [v.value for v in model.trainable_variables])
    for variable, gradient in zip(model.trainable_variables, wanted, strict=True):
        (name,) = (n for n in found if n.endswith("/".join(variable.path.split("/")[-2:])))
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_the_bundle_gives_the_network_back(tmp_path: Path) -> None:
    model = two_inputs()
    branch = Branch("two", one_input(model), ("stem",))
    write_branch(branch, tmp_path / "branch.safetensors")
    inner = read_branch(tmp_path / "branch.safetensors").branch.model.get_layer("mine")
    np.testing.assert_allclose(inner(INPUTS), model(INPUTS), rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    model = two_inputs()
    with pytest.raises(ModelError, match=r"have the shapes \[5, 3\], \[5, 4, 4, 2\]"):
        as_rows(model, INPUTS[::-1])
    sized = keras.Input((None, 2))
    with pytest.raises(ModelError, match="every input must have a fixed shape"):
        one_input(keras.Model(sized, layers.GlobalMaxPooling1D()(sized)))
