"""`toolkit compare`: a verdict with the commands for it, and one sentence for what does not fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.experiment.compare.pair import check_pair
from toolkit.experiment.compare.planning import comparison_cells, comparison_options
from toolkit.experiment.running.results import ResultWriter
from toolkit.experiment.running.run_cell import run_cell
from toolkit.experiment.scores import Final

pytestmark = pytest.mark.xdist_group("experiment")
Toolkit = Callable[..., Any]
NETWORKS = """\
import keras
from keras import layers
from toolkit.branch import Branch, Supervised

def network(*more, stem="stem"):
    first, last = layers.Dense(4, activation="relu", name=stem), layers.Dense(3)
    return keras.Sequential([keras.Input((6,)), first, *more, last, layers.Softmax()])

def weak():
    return network()

def strong():
    return network(layers.Dense(5, activation="relu"))

def stranger():
    return network(layers.Dense(5), stem="trunk")

def stem_alone():
    return network(layers.Dense(5)), ["stem"]

def regression():
    return Branch("numbers", network(), ("stem",), Supervised("mse"))

def pair_of_classes():
    return keras.Sequential([keras.Input((6,)), layers.Dense(2)])
"""
ACCURACY = {"isolated": 0.7, "homogeneous": 0.8, "share-first": 0.75, "two-loss": 0.9}


def windows(count: int, *, classes: int = 3) -> dict[str, Any]:
    """Examples whose class is where they are high."""
    rng = np.random.default_rng(0)
    y = np.arange(count) % classes
    x = rng.normal(size=(count, 6)) + 3 * (np.arange(6) % classes == y[:, None])
    return {"images": x.astype(np.float32), "labels": y}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(NETWORKS)
    np.savez("mine.npz", **windows(200))
    return tmp_path


def write_results(strong: str, rounds: int = 20, seeds: int = 3) -> Path:
    """Writes finished cells into the default folder, with made-up accuracies."""
    pair = check_pair("my.py:weak", f"my.py:{strong}", Path("mine.npz"), weak_fraction=0.1)
    cells = comparison_cells(
        comparison_options(pair, rounds),
        weak_fraction=0.1,
        seeds=seeds,
        share_first=bool(pair.common),
    )
    folder = Path("results/compare") / pair.digest[:12]
    for cell in cells:
        name = cell.topology if cell.setting == "heterogeneous" else cell.setting
        with ResultWriter(folder, cell, data="", commit=None) as writer:
            for device in cell.devices:
                accuracy = ACCURACY[name] + 0.05 * (device == "powerful") + 0.01 * cell.seed
                writer.final(Final(device, {"test_accuracy": accuracy}))
            writer.finish(1.0)
    return folder


OPTIONS = ("--data", "mine.npz", "--weak-fraction", "0.1", "--seeds", "3", "--jobs", "2")


def test_finished_cells_are_not_run_again_and_give_the_verdict(
    toolkit: Toolkit, here: Path
) -> None:
    folder = write_results("strong")
    before = {file: file.read_bytes() for file in folder.rglob("*.jsonl")}
    assert len(before) == 15
    ran = toolkit("compare", "--weak", "my.py:weak", "--strong", "my.py:strong", *OPTIONS)
    assert ran.code == 0, ran.err
    assert ran.err == "15 cells of 20 rounds, 2 at a time: about 1 min if so many cores are free\n"
    *rows, verdict, weak, strong = ran.out.splitlines()
    assert [line.split("│")[1:3] for line in rows if "two-loss" in line] == [
        [" two-loss    ", " 91.0 ± 0.6             "]
    ]
    assert verdict.startswith(
        "Use two-loss (a cascade with a loss at both outputs): the weak device reaches 91.0 % "
        "instead of 71.0 % alone (+20.0 ± 0.0), the powerful one 96.0 % instead of 76.0 % alone "
    )
    assert weak == "toolkit export --profile weak --model my.py:weak"
    assert strong == "toolkit export --profile powerful --model my.py:strong --cascade my.py:weak"
    assert {file: file.read_bytes() for file in folder.rglob("*.jsonl")} == before


def test_without_a_layer_in_common_the_rest_is_compared(toolkit: Toolkit, here: Path) -> None:
    write_results("stranger")
    ran = toolkit("compare", "--weak", "my.py:weak", "--strong", "my.py:stranger", *OPTIONS)
    assert ran.code == 0, ran.err
    assert "share-first is left out: the networks have no layer in common.\n" in ran.out
    assert "│ share-first" not in ran.out
    assert "Use two-loss" in ran.out


def test_cells_of_networks_without_a_layer_in_common_can_be_run(here: Path) -> None:
    pair = check_pair("my.py:weak", "my.py:stranger", Path("mine.npz"), weak_fraction=0.1)
    options = replace(comparison_options(pair, 1), engine="tf")  # which needs no conversion
    cells = comparison_cells(options, weak_fraction=0.1, seeds=1, share_first=False)
    alone, joined = cells[1], cells[3]
    assert (alone.participants, joined.topology) == ("powerful", "two-loss")
    for cell in (alone, joined):
        result = run_cell(cell, here / "out", Path("mine.npz"))
        assert set(result.finals) == set(cell.devices)


def test_other_networks_or_data_get_another_folder(here: Path) -> None:
    def digest() -> str:
        found = check_pair("my.py:weak", "my.py:strong", Path("mine.npz"), weak_fraction=0.1)
        return found.digest

    first = digest()
    assert digest() == first
    Path("my.py").write_text(NETWORKS.replace("layers.Dense(5,", "layers.Dense(7,"))
    other = digest()
    np.savez("mine.npz", **windows(201))
    assert len({first, other, digest()}) == 3


@pytest.mark.parametrize(
    ("strong", "arrays", "fraction", "sentence"),
    [
        ("strong", windows(200) | {"labels": np.zeros(200)}, "0.1",
         "my-weak cannot learn these data: the file holds labels as float64[160]; the branch takes "
         "int32[160]."),
        ("strong", windows(200, classes=5), "0.1",
         "my-weak cannot learn these data: row 3 of labels in the file is 3; the branch's classes "
         "are 0 to 2."),
        ("strong", windows(200) | {"images": np.zeros((200, 7), np.float32)}, "0.1",
         "my-weak cannot learn these data: the file holds images as float32[160, 7]; the branch "
         "takes float32[160, 6]."),
        ("strong", windows(20), "0.05",
         "the weak device would hold 1 of 16 examples, and it needs at least 2: one to train on "
         "and one to validate with."),
        ("strong", windows(0), "0.1", "my-weak cannot learn these data: the file holds 0 "
         "examples as images and 0 targets as labels, to train with."),
        ("strong", windows(200), "2",
         "the weak device cannot hold 2 of the data: take more than 0 and less than 1, as 0.05 "
         "is."),
        ("regression", windows(200), "0.1",
         "numbers cannot learn these data: the file holds labels as int32[160]; the branch takes "
         "float32[160, 3]."),
        ("pair_of_classes", windows(200, classes=2), "0.1",
         "a cascade adds the outputs of two networks, and my-weak answers (None, 3), "
         "my-pair_of_classes (None, 2)."),
        ("weak", windows(200), "0.1",
         "my-weak is the same network as my-weak; in a cascade the strong one has layers of its "
         "own."),
        ("nobody", windows(200), "0.1", "my.py has no function 'nobody'."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(
    toolkit: Toolkit,
    here: Path,
    strong: str,
    arrays: dict[str, Any],
    fraction: str,
    sentence: str,
) -> None:
    np.savez("mine.npz", **arrays)
    options = ("--weak", "my.py:weak", "--strong", f"my.py:{strong}", "--data", "mine.npz")
    assert toolkit("compare", *options, "--weak-fraction", fraction).refusal == sentence
    assert not Path("results").exists()
