"""Studies of numbers and of autoencoders: two unequal devices in a fleet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firmware_sim.bundle.target import Target
from toolkit.errors import ExperimentError
from toolkit.experiment.figures.draw import draw_figures
from toolkit.experiment.running.results import read_results
from toolkit.experiment.running.run_cell import run_cell
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedOptions, plan
from toolkit.experiment.supervised.splits import check_split

pytestmark = pytest.mark.xdist_group("experiment")
NETWORKS = """
import keras
from keras import layers

from toolkit.branch import Adam, Branch, Supervised


def network(name, learning, outputs, *more):
    stem = layers.Dense(6, activation="tanh", name="stem")
    model = keras.Sequential([keras.Input((8,)), stem, *more, layers.Dense(outputs, name="out")])
    return Branch(name, model, ("stem", "out"), learning)


def numbers(*more):
    return network("numbers", Supervised("huber", Adam(0.01)), 2, *more)


def auto(*more):
    return network("auto", Supervised("mse", Adam(0.01), target="input"), 8, *more)


def strong_numbers():
    return numbers(layers.Dense(12, activation="tanh", name="more"))


def strong_auto():
    return auto(layers.Dense(12, activation="tanh", name="more"))
"""


def cell(file: Path, kind: str) -> SupervisedCell:
    options = SupervisedOptions(
        task="npz", rounds=3, examples_per_round=320, engine="tf",
        weak_model=f"{file}:{kind}", strong_model=f"{file}:strong_{kind}",
    )  # fmt: skip
    (found,) = plan(
        options, settings=["heterogeneous"], topologies=["share-first"], weak_fractions=[0.25],
        seeds=[0],
    )  # fmt: skip
    return found


def write_data(file: Path, *, targets: bool) -> None:
    """Inputs on a plane of two directions, which the targets are the places in."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(200, 2))
    x = (places @ rng.normal(size=(2, 8))).astype(np.float32)
    np.savez(file, x=x, **({"y": places} if targets else {}))


@pytest.mark.parametrize(
    ("kind", "measure", "named"),
    [("numbers", "rmse", "test RMSE"), ("auto", "reconstruction_error", "reconstruction error")],
)
def test_a_fleet_learns_and_keeps_the_version_of_the_lowest_error(
    tmp_path: Path, kind: str, measure: str, named: str
) -> None:
    file, data, out = tmp_path / "my.py", tmp_path / "mine.npz", tmp_path / "out"
    file.write_text(NETWORKS, encoding="utf-8")
    write_data(data, targets=kind == "numbers")
    result = run_cell(cell(file, kind), out, data)
    for device in ("weak", "powerful"):
        curve = [point.scores for point in result.curve(device)]
        errors = [scores[f"validation_{measure}"] for scores in curve]
        assert len(errors) == 4
        assert min(errors) < 0.8 * errors[0]
        final = result.finals[device].scores
        assert final[f"validation_{measure}"] == min(errors)
        assert final["best_round"] == errors.index(min(errors))
        assert final[f"test_{measure}"] == curve[int(final["best_round"])][f"test_{measure}"]
    files = draw_figures(read_results(out), tmp_path)
    assert [path.name for path in files] == ["supervised.png", "supervised.svg", "table.md"]
    assert f"{named} (lower is better)" in files[-1].read_text(encoding="utf-8")


def test_a_dirichlet_split_needs_classes() -> None:
    check_split("iid", Target("numbers", (1,)))
    check_split("dirichlet:0.5", Target("class"))
    with pytest.raises(ExperimentError) as caught:
        check_split("dirichlet:0.5", Target("numbers", (1,)))
    assert str(caught.value) == (
        "the split dirichlet:0.5 divides classes, and these examples have none; take iid."
    )
