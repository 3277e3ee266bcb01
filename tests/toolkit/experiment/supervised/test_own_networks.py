"""A study of the user's own two networks: what they share, and what does not fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from firmware_sim.bundle.target import Target
from firmware_sim.tasks.labelled import Examples
from toolkit.branch.learning import DoubleQ
from toolkit.branch.user_model import load_branch
from toolkit.errors import ExperimentError
from toolkit.experiment.running.run_cell import run_cell
from toolkit.experiment.supervised.branches import supervised_branch
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedOptions, plan
from toolkit.experiment.supervised.own_networks import common_layers, fitted

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
    alone = cells(networks, "share-first", strong="stranger")["isolated powerful"]
    assert (
        supervised_branch(alone, "powerful", image_shape=(16, 2), classes=3).name == "my-stranger"
    )
    joined = cells(networks, "two-loss", strong="stranger")["heterogeneous both"]
    strong = supervised_branch(joined, "powerful", image_shape=(16, 2), classes=3)
    assert set(strong.local_names) == {"last/kernel", "last/bias"}


def examples(shape: tuple[int, ...], classes: int, dtype: str = "float32") -> Examples:
    x, y = np.zeros((6, *shape), dtype), np.arange(6, dtype=np.int32) % classes
    return Examples(x, y, x, y)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (examples((8, 2), 3),
         "the file holds x_train as float32[6, 8, 2]; the branch takes float32[6, 16, 2]."),
        (examples((16, 2), 4),
         "row 3 of y_train in the file is 3; the branch's classes are 0 to 2."),
        (examples((16, 2), 3, "float64"),
         "the file holds x_train as float64[6, 16, 2]; the branch takes float32[6, 16, 2]."),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_are_one_sentence(networks: Path, found: Examples, said: str) -> None:
    branch = load_branch(f"{networks}:weak")
    target, _ = fitted(branch, examples((16, 2), 2))  # a class that no example has does no harm
    assert target == Target("class", (), 3)
    with pytest.raises(ExperimentError) as caught:
        fitted(branch, found)
    assert str(caught.value) == f"my-weak cannot learn these data: {said}"


def test_a_network_that_plays_is_one_sentence(networks: Path) -> None:
    branch = replace(load_branch(f"{networks}:weak"), learning=DoubleQ())
    with pytest.raises(ExperimentError) as caught:
        fitted(branch, examples((16, 2), 3))
    assert str(caught.value) == (
        "my-weak does not learn from examples; a supervised study needs networks that do."
    )


ROLES = """
import keras
from keras import layers


def weak():
    stem = layers.Conv1D(4, 3, strides=2, name="stem")
    return keras.Sequential(
        [keras.Input((16, 2)), stem, layers.GlobalMaxPooling1D(), layers.Dense(3, name="out")]
    )


def strong():
    stem, more = layers.Conv1D(4, 3, strides=2, name="stem"), layers.Conv1D(4, 3, name="more")
    return keras.Sequential(
        [keras.Input((16, 2)), stem, more, layers.GlobalMaxPooling1D(), layers.Dense(3, name="out")]
    )


def other_stride():
    stem = layers.Conv1D(4, 3, name="stem")
    return keras.Sequential(
        [keras.Input((16, 2)), stem, layers.GlobalMaxPooling1D(), layers.Dense(3, name="out")]
    )
"""


def test_layers_in_common_have_the_same_role(tmp_path: Path) -> None:
    """Equal names and shapes are not enough: `out` follows something else, a stride differs."""
    (tmp_path / "my.py").write_text(ROLES)
    weak, strong, other = (
        load_branch(f"{tmp_path / 'my.py'}:{name}") for name in ("weak", "strong", "other_stride")
    )
    assert common_layers(weak, strong) == ("stem",)
    assert common_layers(weak, other) == ()
