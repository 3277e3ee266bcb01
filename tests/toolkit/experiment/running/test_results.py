"""Results on disk: whole lines count, points are written once, strangers are refused."""

import json
from pathlib import Path

import pytest

from toolkit.errors import ExperimentError
from toolkit.experiment.players.cell import PlayerCell, PlayerOptions
from toolkit.experiment.players.cell import plan as plan_players
from toolkit.experiment.running.kinds import read_cell
from toolkit.experiment.running.results import (
    ResultWriter,
    known_result,
    read_result,
    read_results,
    result_file,
)
from toolkit.experiment.scores import Final, Point
from toolkit.experiment.supervised.cell import SupervisedOptions, plan

OPTIONS = SupervisedOptions(task="digits", rounds=2)
(CELL,) = plan(
    OPTIONS, settings=["homogeneous"], topologies=["cascading"], weak_fractions=[0.2], seeds=[4]
)
POINTS = [
    Point("weak", 0, {"validation_accuracy": 0.1, "test_accuracy": 0.09}),
    Point("powerful", 0, {"validation_accuracy": 0.2}),
    Point("weak", 1, {"validation_accuracy": 0.5}),
]
FINAL = Final("weak", {"best_round": 1, "test_accuracy": 0.45})
STORED = Path(__file__).parents[4] / "results"


def write(folder: Path, *points: Point) -> None:
    with ResultWriter(folder, CELL, data="d", commit="c") as writer:
        for point in points:
            writer.point(point)


def kinds(folder: Path) -> list[str]:
    text = result_file(folder, CELL).read_text(encoding="utf-8")
    return [json.loads(line)["kind"] for line in text.splitlines()]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with ResultWriter(tmp_path, CELL, data="d", commit="c") as writer:
        for point in POINTS:
            writer.point(point)
        writer.final(FINAL)
        assert read_results(tmp_path) == [], "it is not finished"
        writer.finish(1.5)
    (result,) = read_results(tmp_path)
    assert (result.cell, result.points, result.finals) == (CELL, POINTS, {"weak": FINAL})
    assert (result.seconds, result.finished) == (1.5, True)
    assert (result.header["data"], result.header["commit"]) == ("d", "c")
    assert result.curve("weak") == [POINTS[0], POINTS[2]]


def test_a_point_is_written_once(tmp_path: Path) -> None:
    write(tmp_path, *POINTS[:2], POINTS[0])
    write(tmp_path, *POINTS)
    found = read_result(result_file(tmp_path, CELL))
    assert found is not None and found.points == POINTS
    assert kinds(tmp_path) == ["header", "point", "point", "resumed", "point"]


def test_any_cut_is_survived(tmp_path: Path) -> None:
    """However much of the file had reached the disk, writing all again completes it."""
    write(tmp_path / "whole", *POINTS)
    whole = result_file(tmp_path / "whole", CELL).read_bytes()
    for kept in range(0, len(whole), 7):
        file = result_file(tmp_path / str(kept), CELL)
        file.parent.mkdir(parents=True)
        file.write_bytes(whole[:kept])
        write(tmp_path / str(kept), *POINTS)
        found = read_result(file)
        assert found is not None
        assert (found.cell, found.points) == (CELL, POINTS)


def test_results_of_another_configuration_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (other,) = plan(
        SupervisedOptions(task="digits", rounds=3),
        settings=["homogeneous"],
        topologies=["cascading"],
        weak_fractions=[0.2],
        seeds=[4],
    )
    with pytest.raises(ExperimentError) as caught:
        known_result(tmp_path, other)
    assert str(caught.value) == (
        f"{result_file(tmp_path, CELL)} holds results of another configuration; give another "
        "--out, or the same options as before."
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"kind": "header", "format": 99}\n', " was written by another version."),
        ('{"kind": "header", "format": 1}\n', " holds no results of a cell."),
        ('{"a": 1}\n', " holds no results of a cell."),
        ("[]\n", " holds no results of a cell."),
        ("no json\n", " cannot be read (Expecting value: line 1 column 1 (char 0))."),
    ],
)
def test_strange_files_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    file = result_file(tmp_path, CELL)
    file.parent.mkdir(parents=True)
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ExperimentError) as caught:
        read_results(tmp_path)
    assert str(caught.value) == f"{file}{sentence}"


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        read_results(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds no results; `toolkit experiment` with --out {tmp_path} makes some."
    )


def test_cells_of_earlier_versions_are_read() -> None:
    """What they do not state has the value of today's default."""
    (cell,) = plan(
        SupervisedOptions(task="cifar10", rounds=9), settings=["heterogeneous"],
        topologies=["cascading"], weak_fractions=[0.05], seeds=[1],
    )  # fmt: skip
    stated = cell.to_json()
    for new in ("weak_model", "strong_model", "merge", "optimizer"):
        del stated["settings"][new]
    assert read_cell(json.loads(json.dumps(stated))) == cell


@pytest.mark.parametrize("folder", sorted(STORED.iterdir()), ids=lambda folder: folder.name)
def test_stored_results_are_read(folder: Path) -> None:
    results = read_results(folder)
    assert len(results) == len(list((folder / "cells").glob("*.jsonl"))) > 0
    for result in results:
        assert set(result.finals) == set(result.cell.devices)


def test_an_asynchronous_cell_is_read_with_its_mode() -> None:
    """Result files call the mode "coordinator", and the setting "mode"."""
    options = PlayerOptions(
        task="cartpole", steps_per_round=9, warm_up=1, exploration=1, replay=(9, 9), test_steps=1
    )
    (cell,) = plan_players(
        options,
        games=["cartpole"],
        settings=["heterogeneous"],
        topologies=["share-first"],
        modes=["async"],
        weak_rates=[0.5],
        seeds=[0],
    )
    stated = json.loads(json.dumps(cell.to_json()))
    assert (stated["mode"], stated["coordinator"]) == ("heterogeneous", "async")
    assert stated["settings"]["replay"] == [9, 9]
    read = read_cell(stated)
    assert isinstance(read, PlayerCell) and read == cell
    assert (read.setting, read.mode) == ("heterogeneous", "async")
