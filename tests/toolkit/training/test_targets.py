"""`train`, `accumulate` and `evaluate` of every kind of target, in both runtimes.

The reference is written the ordinary way: Keras' network, GradientTape, gradient descent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from keras import layers

from toolkit.autodiff.naming import named_variables
from toolkit.branch.branch import Branch
from toolkit.branch.learning import LossName, Supervised
from toolkit.branch.optimizers import SGD
from toolkit.conversion.convert import convert_module
from toolkit.training.inputs import training_inputs
from toolkit.training.module import TrainingModule

BATCH, STEPS, RATE = 4, 3, 0.5
TAKER = Path(__file__).with_name("take_micro_batches.py")
ROOT = Path(__file__).parents[3]
RUNTIMES = ("ai-edge-litert", "tflite-runtime")
Arrays = dict[str, npt.NDArray[Any]]
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A tiny network that learns one kind of target."""

    takes: tuple[int, ...]
    hidden: Callable[[], list[Any]]
    loss: LossName
    micro_batch: int
    target: Any = None
    dtype: str = "float32"
    scale: float = 1.0

    def branch(self) -> Branch:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input(self.takes), *self.hidden()])
        learning = Supervised(self.loss, SGD(RATE), self.target)
        return Branch("tiny", model, ("stem",), learning, self.dtype, self.scale)


CASES = {
    "numbers": Case(
        (6,), lambda: [layers.Dense(5, "tanh", name="stem"), layers.Dense(2)], "huber", 2
    ),
    "input": Case(
        (4, 4, 1),
        lambda: [
            layers.Conv2D(2, 3, padding="same", activation="tanh", name="stem"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ],
        "mse",
        2,
        target="input",
        dtype="uint8",
        scale=1 / 16,
    ),
    "positions": Case(
        (6, 3),
        lambda: [layers.Dense(4, "tanh", name="stem"), layers.Dense(3, "softmax")],
        "cross_entropy",
        2,
    ),
}
# A closing softmax, or what the loss makes of it; these are not converted.
CLOSED = {
    "a probability as numbers": Case(
        (6,), lambda: [layers.Dense(3, name="stem"), layers.Softmax()], "mse", 4
    ),
    "positions of a picture, reshaped": Case(
        (2, 3, 2),
        lambda: [layers.Conv2D(3, 1, activation="softmax", name="stem"), layers.Reshape((6, 3))],
        "cross_entropy",
        4,
    ),
}


def batches(branch: Branch) -> list[Arrays]:
    made = []
    for _ in range(STEPS):
        batch: Arrays = {}
        for name, spec in training_inputs(branch, BATCH).items():
            if spec.dtype == tf.uint8:
                batch[name] = RNG.integers(0, 17, spec.shape).astype(np.uint8)
            elif spec.dtype == tf.int32:
                batch[name] = RNG.integers(-1, 3, spec.shape).astype(np.int32)  # some are masked
            else:
                batch[name] = RNG.normal(0, 2, spec.shape).astype(np.float32)
        made.append(batch)
    return made


def wanted_losses(branch: Branch, outputs: tf.Tensor, batch: Arrays) -> tf.Tensor:
    """The loss of each example."""
    assert isinstance(branch.learning, Supervised)
    if branch.learning.loss == "cross_entropy":
        labels = batch["y"]
        chosen = tf.gather(outputs, np.maximum(labels, 0), batch_dims=2)
        return tf.reduce_mean(-tf.math.log(chosen) * (labels >= 0), -1)
    y = batch["y"] if "y" in batch else batch["x"].astype(np.float32) * branch.input_scale
    loss = {"mse": keras.losses.mean_squared_error, "huber": keras.losses.huber}
    flat = (len(y), -1)
    return loss[branch.learning.loss](tf.reshape(y, flat), tf.reshape(outputs, flat))


class Reference:
    """The same steps in TensorFlow."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.variables = {n: v for n, v in named_variables(branch.model).items() if v.trainable}

    def gradients(self, batch: Arrays) -> tuple[float, dict[str, tf.Tensor]]:
        x = batch["x"].astype(np.float32) * self.branch.input_scale
        with tf.GradientTape() as tape:
            outputs = self.branch.model(x)
            loss = tf.reduce_mean(wanted_losses(self.branch, outputs, batch))
        found = tape.gradient(loss, [v.value for v in self.variables.values()])
        return float(loss), dict(zip(self.variables, found, strict=True))

    def train(self, batch: Arrays) -> float:
        loss, gradients = self.gradients(batch)
        for name, variable in self.variables.items():
            variable.assign(variable - RATE * gradients[name])
        return loss


@dataclass(frozen=True)
class Played:
    """What both runtimes answer, by runtime."""

    branch: Branch
    start: list[npt.NDArray[Any]]
    given: list[Arrays]
    answers: dict[str, Arrays]
    evaluated: dict[str, Arrays]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """One process for each runtime plays all cases."""
    folders, branches, given = {}, {}, {}
    for name, case in CASES.items():
        folder = folders[name] = tmp_path_factory.mktemp("target")
        branch = branches[name] = case.branch()
        runtime = RUNTIMES[len(folders) % 2]  # that the file is tuned for
        module = TrainingModule(branch, batch=BATCH, micro_batch=case.micro_batch, runtime=runtime)
        (folder / "model.tflite").write_bytes(convert_module(module))
        given[name] = batches(branch)
        flat = {f"{i}/{key}": v for i, batch in enumerate(given[name]) for key, v in batch.items()}
        np.savez(folder / "batches.npz", **flat)
    answers: dict[str, dict[str, tuple[Arrays, Arrays]]] = {name: {} for name in CASES}
    for runtime in RUNTIMES:
        command = [sys.executable, str(TAKER), runtime, *map(str, folders.values())]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, env=env, capture_output=True)
        for name, folder in folders.items():
            answers[name][runtime] = read(folder / "answers.npz"), read(folder / "evaluated.npz")
    return {
        name: Played(
            branches[name],
            branches[name].model.get_weights(),
            given[name],
            {runtime: found[0] for runtime, found in answers[name].items()},
            {runtime: found[1] for runtime, found in answers[name].items()},
        )
        for name in CASES
    }


def read(file: Path) -> Arrays:
    with np.load(file) as found:
        return dict(found)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_training_is_tensorflows(played: dict[str, Played], case: str, runtime: str) -> None:
    found = played[case]
    found.branch.model.set_weights(found.start)
    reference, answers = Reference(found.branch), found.answers[runtime]
    before = {name: v.numpy() for name, v in reference.variables.items()}
    losses = [reference.train(batch) for batch in found.given]
    np.testing.assert_allclose(answers["losses"], losses, rtol=1e-5)
    for name, variable in reference.variables.items():
        trained = answers[f"trained:{name}"]
        np.testing.assert_allclose(trained, variable.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
        assert np.abs(trained - before[name]).max() > 1e-3
    sums = [reference.gradients(batch)[1] for batch in found.given[:2]]
    for name in found.branch.shared_names:
        total = sum(gradient[name].numpy() for gradient in sums)
        np.testing.assert_allclose(answers[f"dθ:{name}"], total, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_evaluating_is_kerass(played: dict[str, Played], case: str, runtime: str) -> None:
    found = played[case]
    branch, evaluated = found.branch, found.evaluated[runtime]
    branch.model.set_weights(found.start)
    batch = {name: rows[: CASES[case].micro_batch] for name, rows in found.given[0].items()}
    seen = batch["x"].astype(np.float32) * branch.input_scale
    outputs = branch.model(seen)
    losses = wanted_losses(branch, outputs, batch).numpy()
    if branch.learning.loss == "cross_entropy":  # type: ignore[union-attr]
        predicted = outputs.numpy().argmax(-1)
        np.testing.assert_allclose(evaluated["loss"], losses.sum(), rtol=1e-5)
        np.testing.assert_array_equal(evaluated["predicted"], predicted)
        assert evaluated["correct"] == (predicted == batch["y"]).sum()
        return
    error = (outputs.numpy() - batch.get("y", seen)).reshape(len(seen), -1)
    np.testing.assert_allclose(evaluated["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(evaluated["absolute_error"], np.abs(error).mean(1), rtol=1e-5)
    np.testing.assert_allclose(evaluated["squared_error"], (error**2).mean(1), rtol=1e-5)


@pytest.mark.parametrize("case", CLOSED)
def test_cross_entropy_alone_starts_before_a_closing_softmax(case: str) -> None:
    branch = CLOSED[case].branch()
    module = TrainingModule(branch, batch=BATCH, runtime=RUNTIMES[0])
    reference = Reference(branch)
    for batch in batches(branch):
        answered = module.train(**{name: tf.constant(rows) for name, rows in batch.items()})
        assert float(answered["loss"]) == pytest.approx(reference.train(batch), rel=1e-5)
        for name, variable in reference.variables.items():
            trained = module.tensors([name])[name].numpy()
            np.testing.assert_allclose(trained, variable.numpy(), rtol=1e-4, atol=1e-6)


@cache
def frozen_autoencoder() -> Branch:
    first = layers.Dense(3, "tanh", name="frozen", trainable=False)
    model = keras.Sequential([keras.Input((4,)), first, layers.Dense(4, name="stem")])
    return Branch("auto", model, ("stem",), Supervised("mse", SGD(0.1), "input"))


def test_an_autoencoder_compares_with_the_example_and_not_with_features() -> None:
    """Its frozen layers are no prefix."""
    module = TrainingModule(frozen_autoencoder(), batch=2, runtime="ai-edge-litert")
    assert module.signatures()["train"].inputs.keys() == {"x"}
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    outputs = frozen_autoencoder().model(x).numpy()
    found = module.evaluate(tf.constant(x))["squared_error"]
    np.testing.assert_allclose(found, ((outputs - x) ** 2).mean(1), rtol=1e-5)
