"""A study of the user's own two networks: what they share, and what does not fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from toolkit.errors import ExperimentError
from toolkit.experiment.running.run_cell import run_cell
from toolkit.experiment.supervised.branches import supervised_branch
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedOptions, plan

pytestmark = pytest.mark.xdist_group("experiment")
NETWORKS = """
import keras
from keras import layers


def network(hidden, stem="stem"):
    return keras.Sequential(
        [
            keras.Input((16, 2)),
            layers.Conv1D(4, 3, activation="relu", name=stem),
            layers.Flatten(name="flatten"),
            layers.Dense(hidden, activation="relu", name="hidden"),
            layers.Dense(3, activation="softmax", name="out"),
        ]
    )


def weak():
    return network(2)


def strong():
    return network(20)


def stranger():
    return keras.Sequential([keras.Input((16, 2)), layers.Flatten(), layers.Dense(3, name="last")])
"""


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    file = tmp_path / "my.py"
    file.write_text(NETWORKS, encoding="utf-8")
    return file


def cells(
    networks: Path, topology: str, weak: str = "weak", strong: str = "strong"
) -> dict[str, SupervisedCell]:
    """Returns the isolated weak cell, and the heterogeneous one."""
    options = SupervisedOptions(
        task="npz", rounds=2, examples_per_round=64, engine="tflite",
        weak_model=f"{networks}:{weak}", strong_model=f"{networks}:{strong}",
    )  # fmt: skip
    found = plan(
        options, settings=["isolated", "heterogeneous"], topologies=[topology],
        weak_fractions=[0.25], seeds=[0],
    )  # fmt: skip
    return {f"{cell.setting} {cell.participants}": cell for cell in found}


def test_each_topology_shares_its_own_part(networks: Path) -> None:
    whole = {
        f"{layer}/{part}" for layer in ("stem", "hidden", "out") for part in ("kernel", "bias")
    }
    expected = {
        "share-first": {"stem/kernel", "stem/bias"},  # the others have two widths
        "cascading": whole,
        "two-loss": whole,
    }
    for topology, names in expected.items():
        cell = cells(networks, topology)["heterogeneous both"]
        weak, powerful = (
            supervised_branch(cell, device, image_shape=(16, 2), classes=3)
            for device in ("weak", "powerful")
        )
        assert set(weak.shared_names) == set(powerful.shared_names) == names
        assert powerful.early_output == ("out" if topology == "two-loss" else None)
        assert ("strong_hidden/kernel" in powerful.weights()) == (topology != "share-first")


def test_a_fleet_of_own_networks_learns_from_floats(networks: Path, tmp_path: Path) -> None:
    """Windows of two channels; the class is the first channel's height."""
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 3
    windows = rng.normal(size=(160, 16, 2)).astype(np.float32)
    windows[:, :, 0] += 3 * labels[:, None]
    data = tmp_path / "mine.npz"
    np.savez(data, images=windows, labels=labels)
    cell = cells(networks, "two-loss")["heterogeneous both"]
    result = run_cell(cell, tmp_path / "out", data)
    for device in cell.devices:
        curve = result.curve(device)
        assert curve[-1].scores["validation_loss"] < curve[0].scores["validation_loss"]


def test_networks_that_do_not_fit_are_one_sentence(networks: Path) -> None:
    cell = cells(networks, "share-first", strong="stranger")["heterogeneous both"]
    with pytest.raises(ExperimentError) as caught:
        supervised_branch(cell, "weak", image_shape=(16, 2), classes=3)
    assert str(caught.value) == (
        f"{networks}:weak and {networks}:stranger have no layer in common, by name and shape; give "
        "the layers that they begin with the same names."
    )
    fits = replace(cell, options=replace(cell.options, strong_model=f"{networks}:strong"))
    for shape, classes in (((8, 2), 3), ((16, 2), 4)):
        with pytest.raises(ExperimentError) as caught:
            supervised_branch(fits, "weak", image_shape=shape, classes=classes)
        assert str(caught.value).endswith(
            f" takes [16, 2] and tells 3 classes apart; the data have examples of {list(shape)} "
            f"and {classes} classes."
        )
