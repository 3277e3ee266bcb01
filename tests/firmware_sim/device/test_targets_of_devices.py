"""`--task npz` with numbers and autoencoders: alone, and as two unequal devices of a fleet."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from broker.aggregator.slice_file import read_slice
from broker.log import Log
from broker.protocol.slice import Slice
from firmware_sim.bundle.reader import Bundle
from firmware_sim.bundle.target import Target
from firmware_sim.device.adoption import has_collapsed
from firmware_sim.device.build import make_rounds
from firmware_sim.device.make_task import TaskOptions, make_task
from firmware_sim.errors import TaskError
from firmware_sim.tasks.anomaly import scores_of
from firmware_sim.training.rounds import Plan, Rounds
from firmware_sim.training.runtime import Model
from tests.harness.quick_bundles import quick_bundle
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import Adam
from toolkit.fleet.in_one_process import NEVER, Fleet, Member, in_memory, run_fleet

COUNT, WIDE = 300, 6
OFF_THE_PLANE = np.array([2, -2] * 3, np.float32)


def network(name: str, learning: Supervised, outputs: int, *more: Any) -> Branch:
    keras.utils.set_random_seed(0)
    stem = layers.Dense(5, activation="tanh", name="stem")
    model = keras.Sequential([keras.Input((WIDE,)), stem, *more, layers.Dense(outputs, name="out")])
    return Branch(name, model, ("stem",), learning)


def autoencoder(*more: Any) -> Branch:
    return network("auto", Supervised("mse", Adam(0.02), "input"), WIDE, *more)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs on a plane of two directions; the targets are the places in it."""
    rng = np.random.default_rng(0)
    y = rng.uniform(-1, 1, (COUNT, 2))
    file = tmp_path_factory.mktemp("places") / "places.npz"
    np.savez(file, x=(y @ rng.normal(size=(2, WIDE))).astype(np.float32), y=y)
    return file


@pytest.fixture(scope="module")
def autoencoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("auto")
    more = layers.Dense(8, activation="tanh", name="more")
    return {
        "weak": quick_bundle(autoencoder(), "weak", folder / "weak"),
        "powerful": quick_bundle(autoencoder(more), "powerful", folder / "powerful"),
    }


def test_numbers_are_learnt_alone(places: Path, tmp_path: Path) -> None:
    branch = network("numbers", Supervised("huber", Adam(0.02)), 2)
    bundle = quick_bundle(branch, "weak", tmp_path / "bundle")
    assert bundle.manifest.branch.target == Target("numbers", (2,))
    command = [sys.executable, "-m", "firmware_sim.device", "--bundle", str(bundle.folder)]
    command += ["--task", "npz", "--data", str(places), "--isolated", "--rounds", "3"]
    command += ["--state", str(tmp_path / "state"), "--steps", "40", "--rate", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    scores = json.loads(said.stdout)
    evaluated = [json.loads(line) for line in said.stderr.splitlines() if '"evaluated"' in line]
    assert [e["round"] for e in evaluated] == [0, 1, 2, 3]
    assert scores.keys() == {"loss", "mae", "rmse", "r2"}
    assert scores["rmse"] == evaluated[-1]["rmse"] < 0.5 * evaluated[0]["rmse"]
    assert scores["r2"] > 0.8
    # The same figures, worked out plainly.
    model = Model(bundle.model, runtime="ai-edge-litert")
    data = np.load(places)
    x, y = data["x"][::5], data["y"][::5]
    error = np.array([model.call("infer", x=one[None])["output"][0] for one in x]) - y
    assert evaluated[0]["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert evaluated[0]["rmse"] == pytest.approx((error**2).mean() ** 0.5, rel=1e-5)


def rounds_of(
    bundle: Bundle, name: str, data: Path, folder: Path, share: tuple[float, float]
) -> Rounds:
    task = make_task("npz", bundle, TaskOptions(data=data, share=share, seed=len(name)))
    plan = Plan(steps=40, checkpoint_seconds=NEVER, resend_seconds=NEVER)
    log = Log(io.StringIO())
    return make_rounds(bundle, task, device=name, state=folder / name, plan=plan, log=log)


def test_two_unequal_autoencoders_learn_as_a_fleet_and_find_anomalies(
    autoencoders: dict[str, Bundle], places: Path, tmp_path: Path
) -> None:
    """The weak device holds a fifth of the data and a smaller network; both share the stem."""
    data = tmp_path / "x.npz"
    x = np.load(places)["x"]
    np.savez(data, x=x)  # nobody asks for a y
    shares = {"weak": (0.0, 0.2), "powerful": (0.2, 1.0)}
    rounds = {
        name: rounds_of(bundle, name, data, tmp_path, shares[name])
        for name, bundle in autoencoders.items()
    }
    untrained = {name: own.learner.evaluate() for name, own in rounds.items()}
    known, start = read_slice(autoencoders["weak"].slice.read_bytes())
    fleet = Fleet(
        name="plant",
        members=[
            Member(name, own, autoencoders[name].manifest.shared, Log(io.StringIO()))
            for name, own in rounds.items()
        ],
        known=Slice.of(known.tensors),
        start=start,
        rounds=4,
        folder=tmp_path / "aggregator",
        log=Log(io.StringIO()),
    )
    scores = run_fleet(fleet, in_memory())
    stems = [own.learner.shared()["stem/kernel"] for own in rounds.values()]
    np.testing.assert_array_equal(stems[0], stems[1])
    for name, found in scores.items():
        assert found.keys() == {"loss", "reconstruction_error", "anomaly_threshold", "r2"}
        assert found["reconstruction_error"] < 0.3 * untrained[name]["reconstruction_error"]
        learner = rounds[name].learner
        target = autoencoders[name].manifest.branch.target
        assert target is not None
        held = x[::5]
        usual, strange = (
            scores_of(target, some, np.array([_answer(learner.model, one) for one in some]))
            for some in (held, held + OFF_THE_PLANE)
        )
        assert found["anomaly_threshold"] == pytest.approx(np.quantile(usual, 0.99), rel=1e-4)
        assert (strange > found["anomaly_threshold"]).mean() > 0.9
        state = learner.state()
        assert float(state["task/anomaly_threshold"]) == found["anomaly_threshold"]
        again = rounds_of(autoencoders[name], name, data, tmp_path / "again", shares[name])
        again.learner.restore(state)
        assert again.learner.task.threshold == found["anomaly_threshold"]  # type: ignore[attr-defined]


def _answer(model: Model, x: Any) -> Any:
    return model.call("infer", x=np.ascontiguousarray(x[None]))["output"][0]


def test_a_damaged_threshold_is_refused(
    autoencoders: dict[str, Bundle], places: Path, tmp_path: Path
) -> None:
    task = make_task("npz", autoencoders["weak"], TaskOptions(data=places))
    with pytest.raises(TaskError) as caught:
        task.restore(task.state() | {"anomaly_threshold": np.zeros(2)})
    assert str(caught.value) == "anomaly_threshold in the state of a task is a single float64."


@pytest.mark.parametrize(
    ("now", "good", "collapsed"),
    [
        ({"r2": 0.9}, 0.95, False),
        ({"r2": 0.3}, 0.95, True),
        ({"r2": -5.0}, 0.95, True),  # worse than a constant answer
        ({"r2": -5.0}, 0.0, False),  # as useless as before
        ({"rmse": 3.0}, 0.95, False),  # what never varies has no R²
        ({"accuracy": 0.2}, 0.9, True),
    ],
)
def test_a_model_collapses_by_what_it_no_longer_explains(
    now: dict[str, float], good: float, collapsed: bool
) -> None:
    assert has_collapsed(now, good) is collapsed
