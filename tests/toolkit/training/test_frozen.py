"""Frozen layers are constants: trained as Keras trains the same network, in both runtimes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from keras import layers

from firmware_sim.tasks.supervised import Batches, train
from firmware_sim.training.features import FeatureCache
from firmware_sim.training.prefixed import load_model
from tests.toolkit.training.trajectory import Trajectory, relative_error
from toolkit.autodiff.naming import named_variables
from toolkit.bench.step.reference import Reference
from toolkit.branch.branch import Branch, all_layers
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import SGD
from toolkit.branch.programs import programs_of
from toolkit.conversion.convert import convert_module
from toolkit.errors import ModelError
from toolkit.export.inspection import operations
from toolkit.export.prefix import convert_prefix
from toolkit.training.module import TrainingModule

BATCH, STEPS = 6, 8  # the prefix takes 4 at once, so its last batch is filled up
PLAYER = Path(__file__).with_name("play_signatures.py")
ROOT = Path(__file__).parents[3]
RUNTIMES = ("ai-edge-litert", "tflite-runtime")
FROZEN = ("stem", "stem_norm", "point", "middle", "middle_norm", "last")


def network() -> keras.Model:
    """Frozen layers at the beginning (with two ends), in the middle and at the end."""
    x = keras.Input((8, 8, 2))
    stem = layers.Conv2D(6, 3, strides=2, padding="same", name="stem")(x)
    stem = layers.ReLU(6.0)(layers.BatchNormalization(name="stem_norm")(stem))
    point = layers.Conv2D(4, 1, name="point")(stem)
    y = layers.DepthwiseConv2D(3, padding="same", name="own")(stem)
    y = layers.Concatenate()([y, point])
    y = layers.Conv2D(5, 3, padding="same", strides=2, name="middle")(y)
    y = layers.ReLU()(layers.BatchNormalization(name="middle_norm")(y))
    y = layers.Dense(7, name="head")(layers.Flatten()(y))
    y = layers.Dense(3, name="last")(y)
    model = keras.Model(x, y)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if "norm" in variable.path:
            low = 0.5 if variable.path.endswith(("gamma", "variance")) else -0.5
            variable.assign(rng.uniform(low, low + 1.0, variable.shape))
    for name in FROZEN:
        model.get_layer(name).trainable = False
    return model


@dataclass(frozen=True, eq=False)
class Trained:
    branch: Branch
    module: TrainingModule
    start: dict[str, npt.NDArray[Any]]
    end: dict[str, npt.NDArray[Any]]
    gradients: dict[str, npt.NDArray[Any]]
    folder: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    keras.utils.set_random_seed(3)
    model = network()
    learning = Supervised(optimizer=SGD(learning_rate=0.05, momentum=0.9))
    branch = Branch("partly frozen", model, ("own",), learning)
    rng = np.random.default_rng(1)
    batches = [
        {
            "x": rng.normal(size=(BATCH, 8, 8, 2)).astype(np.float32),
            "y": rng.integers(0, 3, BATCH, dtype=np.int32),
        }
        for _ in range(STEPS)
    ]
    module = TrainingModule(branch, batch=BATCH, runtime="ai-edge-litert")
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "model.tflite").write_bytes(convert_module(module))
    (folder / "prefix.tflite").write_bytes(convert_prefix(module, "float32", batches[0]["x"]))
    np.savez(
        folder / "batches.npz",
        **{f"{i}/{name}": v for i, batch in enumerate(batches) for name, v in batch.items()},
    )
    start = {name: v.numpy() for name, v in named_variables(model).items()}
    names = [n for n, v in named_variables(model).items() if v.trainable]
    gradients = Reference(branch).gradients(**batches[0])
    return Trained(
        branch=branch,
        module=module,
        start=start,
        end=Trajectory(branch, batches).run(start),
        gradients={n: g.numpy() for n, g in zip(names, gradients, strict=True)},
        folder=folder,
    )


@pytest.fixture(scope="module", params=RUNTIMES)
def answers(request: pytest.FixtureRequest, trained: Trained) -> dict[str, npt.NDArray[Any]]:
    command = [sys.executable, str(PLAYER), request.param, str(trained.folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    with np.load(trained.folder / "answers.npz") as found:
        return dict(found)


def test_training_above_between_and_below_frozen_layers_is_that_of_keras(
    trained: Trained, answers: dict[str, npt.NDArray[Any]]
) -> None:
    assert relative_error(answers["losses"], trained.end["losses"]) < 1e-4
    for name in trained.branch.trainable_names:
        assert relative_error(answers[f"end:{name}"], trained.end[name]) < 1e-4, name
        assert np.abs(trained.end[name] - trained.start[name]).max() > 1e-3, name


def test_the_gradient_that_is_sent_is_that_of_tensorflow(
    trained: Trained, answers: dict[str, npt.NDArray[Any]]
) -> None:
    sent = {name.split(":")[1]: v for name, v in answers.items() if name.startswith("dθ once:")}
    assert sent.keys() == {"own/kernel", "own/bias"}
    for name, value in sent.items():
        assert relative_error(value, trained.gradients[name]) < 1e-4, name


def test_frozen_tensors_are_no_part_of_the_state_and_the_runtimes_own_convolutions_take_them(
    trained: Trained,
) -> None:
    state = set(trained.module.state_shapes)
    assert {n for n in state if not n.startswith("optimizer/")} == set(
        trained.branch.trainable_names
    )
    assert trained.module.programs.frozen.keys() == trained.start.keys() - state
    prefix = operations((trained.folder / "prefix.tflite").read_bytes())["prefix"]
    assert prefix["CONV_2D"] == 2
    assert not {"MUL", "SUB", "RSQRT"} & prefix.keys()  # batch normalisation is in the convolution
    # The stem's six channels and the point's four of 4×4 pixels, side by side.
    assert trained.module.training_program.x.shape == (BATCH, 16 * (6 + 4))


def test_nothing_flows_back_below_the_lowest_layer_that_trains() -> None:
    model = network()
    for layer in model.layers:
        layer.trainable = layer.name == "head"
    head = Branch("head", model, ("head",))
    nodes = programs_of(head, BATCH).training.nodes
    assert {node.layer for node in nodes} == {"head", "last"}


def test_a_branch_in_one_file_starts_from_the_examples(trained: Trained) -> None:
    module = TrainingModule(trained.branch, batch=BATCH, runtime="ai-edge-litert", whole=True)
    x = np.random.default_rng(2).normal(size=(1, 8, 8, 2)).astype(np.float32)
    wanted = trained.branch.model(x).numpy()
    np.testing.assert_allclose(module.infer(x)["output"], wanted, rtol=1e-4, atol=1e-5)


def test_a_frozen_layer_cannot_be_shared_without_a_word(trained: Trained) -> None:
    with pytest.raises(ModelError, match="shares layer 'stem', which is frozen"):
        replace(trained.branch, shared_layers=("own", "stem"))
    assert all_layers(trained.branch.model) == ("own", "head")


def test_a_received_layer_is_set_by_the_fleet_and_never_moved_by_training(
    trained: Trained,
) -> None:
    branch = replace(trained.branch, shared_layers=("own", "middle"), received_layers=("middle",))
    assert branch.received_names == ("middle/kernel", "middle/bias")
    assert branch.sent_names == ("own/kernel", "own/bias")
    module = TrainingModule(branch, batch=BATCH, runtime="ai-edge-litert")
    given = {n: v + 0.5 for n, v in module.tensors(branch.shared_names).items()}
    assert given.keys() == {"own/kernel", "own/bias", "middle/kernel", "middle/bias"}
    module.set(**given)
    row = np.random.default_rng(4).normal(size=module.training_program.x.shape)
    module.train(x=row.astype(np.float32), y=np.zeros(BATCH, np.int32))
    after = module.tensors(branch.shared_names)
    for name in branch.received_names:
        np.testing.assert_array_equal(after[name], given[name])
    assert np.abs(after["own/kernel"] - given["own/kernel"]).max() > 0


def test_steps_on_kept_features_are_the_same_steps(trained: Trained, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2 * BATCH, 8, 8, 2)).astype(np.float32)
    y = rng.integers(0, 3, 2 * BATCH, dtype=np.int32)
    losses = []
    for rows in (0, 2 * BATCH - 1):
        model = load_model(trained.folder / "model.tflite", trained.folder / "prefix.tflite")
        cache = FeatureCache(tmp_path, (160,), rows) if rows else None
        batches = Batches(len(x), BATCH, seed=0)
        losses.append(list(train(model, x, y, batches, steps=6, cache=cache)))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[0][0] != losses[0][2]
