"""Whole cells: engines and transports agree, and a kill at any moment changes no number."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_sim.training import checkpoint
from profiles.errors import StemshareError
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.running import run_cell as module
from toolkit.experiment.running.results import Result, result_file
from toolkit.experiment.running.run_cell import run_cell
from toolkit.experiment.scores import Point
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedOptions, plan
from toolkit.fleet.local import local_broker

pytestmark = pytest.mark.xdist_group("experiment")
ROUNDS = 3
OPTIONS = SupervisedOptions(
    task="digits", rounds=ROUNDS, examples_per_round=192, learning_rate=0.003, test_every=2
)
Straight = dict[SupervisedCell, Result[Cell]]
Numbers = Callable[[Result[Cell]], dict[str, Any]]
RunAndKill = Callable[[Cell, Path, int], Result[Cell] | None]


def cells(options: SupervisedOptions = OPTIONS) -> dict[str, SupervisedCell]:
    found = plan(
        options,
        settings=["isolated", "homogeneous", "heterogeneous"],
        topologies=["cascading"],
        weak_fractions=[0.2],
        seeds=[1],
    )
    return {f"{cell.setting}-{len(cell.devices) > 1 or cell.devices[0]}": cell for cell in found}


ALONE, TOGETHER = cells()["isolated-powerful"], cells()["heterogeneous-True"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """The results of cells that nothing interrupted."""
    out = tmp_path_factory.mktemp("straight")
    return {cell: run_cell(cell, out, None) for cell in cells().values()}


def test_a_cell_has_every_point_and_says_where_it_comes_from(straight: Straight) -> None:
    for cell, result in straight.items():
        assert result.finished
        for device in cell.devices:
            curve = result.curve(device)
            assert [point.round for point in curve] == [0, 1, 2, 3]
            tested = [point.round for point in curve if "test_accuracy" in point.scores]
            assert tested == [0, 2, 3]
            final = result.finals[device].scores
            best = curve[int(final["best_round"])].scores
            assert final["validation_accuracy"] == best["validation_accuracy"]
            assert best["validation_accuracy"] == max(
                p.scores["validation_accuracy"] for p in curve
            )
            if final["best_round"] in tested:
                assert best["test_accuracy"] == final["test_accuracy"]
            assert curve[-1].scores["validation_loss"] < curve[0].scores["validation_loss"]
        header = result.header
        assert header["cell"] == json.loads(json.dumps(cell.to_json()))
        assert {"python", "numpy", "tensorflow"} <= header["versions"].keys()
        assert header["when_killed"] == "goes on"
        assert len(header["data"]) == 64 and "commit" in header


def test_devices_that_share_everything_are_equal(straight: Straight) -> None:
    """After a merge of all that they have, their test accuracies are those of one model."""
    result = straight[cells()["homogeneous-True"]]
    tested = [
        [point.scores.get("test_accuracy") for point in result.curve(device)]
        for device in ("weak", "powerful")
    ]
    assert tested[0] == tested[1]


def test_both_engines_give_the_same_curves(
    straight: Straight, numbers: Numbers, tmp_path: Path
) -> None:
    for cell in (ALONE, TOGETHER):  # both have dropout
        result = run_cell(
            replace(cell, options=replace(cell.options, engine="tflite")), tmp_path, None
        )
        for ours, theirs in zip(
            numbers(result)["points"], numbers(straight[cell])["points"], strict=True
        ):
            assert (ours.device, ours.round) == (theirs.device, theirs.round)
            loss, accuracy = (theirs.scores[f"validation_{what}"] for what in ("loss", "accuracy"))
            assert ours.scores["validation_loss"] == pytest.approx(loss, rel=2e-3)
            assert ours.scores["validation_accuracy"] == pytest.approx(accuracy, abs=0.02)
        for device, final in result.finals.items():
            expected = straight[cell].finals[device].scores["test_accuracy"]
            assert final.scores["test_accuracy"] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("embedded", [False, True])
def test_a_real_broker_gives_the_same_numbers(
    straight: Straight, numbers: Numbers, tmp_path: Path, embedded: bool
) -> None:
    with local_broker(tmp_path / "broker", embedded=embedded) as broker:
        result = run_cell(TOGETHER, tmp_path, None, broker=broker)
    assert numbers(result) == numbers(straight[TOGETHER])


# --- killed, and begun again ---------------------------------------------------------------------


class Killed(BaseException):
    """No code catches it, and only threads are ended after it, as in a process that is killed."""


@pytest.mark.parametrize("cell", [ALONE, TOGETHER], ids=["alone", "together"])
@pytest.mark.parametrize("engine", ["tf", "tflite"])
def test_killed_after_any_evaluation(
    straight: Straight,
    numbers: Numbers,
    run_and_kill: RunAndKill,
    tmp_path: Path,
    cell: SupervisedCell,
    engine: str,
) -> None:
    """Killed several times, a cell ends with the numbers of a run without a kill."""
    cell = replace(cell, options=replace(cell.options, engine=engine))
    runs = [run_and_kill(cell, tmp_path / "killed", 1)]
    while runs[-1] is None:
        assert len(runs) < 20
        runs.append(run_and_kill(cell, tmp_path / "killed", 1 + len(runs)))
    result = runs[-1]
    assert len(runs) >= 3, "it was killed twice at least"
    untouched = straight.get(cell) or run_cell(cell, tmp_path / "untouched", None)
    assert numbers(result) == numbers(untouched)


@pytest.mark.parametrize("cell", [ALONE, TOGETHER], ids=["alone", "together"])
@pytest.mark.parametrize("durable", [False, True])
def test_killed_at_any_checkpoint(
    straight: Straight,
    numbers: Numbers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cell: SupervisedCell,
    durable: bool,
) -> None:
    """Just before a checkpoint is on disk, or just after; the n-th of each run."""
    plain: Callable[..., None] = vars(checkpoint)["write_sealed"]
    left = 0

    def write(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0 or durable:
            plain(*arguments)
        if left < 0:
            raise Killed

    monkeypatch.setattr(checkpoint, "write_sealed", write)
    deaths = 0
    for number in range(1, 20):
        left = number
        try:
            result = run_cell(cell, tmp_path, None)
            break
        except Killed:
            deaths += 1
    assert deaths >= 1
    assert numbers(result) == numbers(straight[cell])


def test_finished_cells_are_not_run_again(
    straight: Straight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_cell(ALONE, tmp_path, None)
    assert not (tmp_path / "state" / ALONE.name).exists()
    monkeypatch.setattr(module, "_run", None)
    assert run_cell(ALONE, tmp_path, None) == first


def test_only_one_process_runs_a_cell(tmp_path: Path) -> None:
    def try_again(point: Point) -> None:
        with pytest.raises(ExperimentError) as caught:
            run_cell(ALONE, tmp_path, None)
        state = tmp_path / "state" / ALONE.name
        assert str(caught.value) == f"another process is running the cell in {state}."
        raise Killed

    with pytest.raises(Killed):
        run_cell(ALONE, tmp_path, None, on_point=try_again)


def test_the_coordinator_has_an_optimizer(straight: Straight, tmp_path: Path) -> None:
    """With momentum the first round is the same, and the next ones move θ_shared further."""
    cell = replace(TOGETHER, options=replace(TOGETHER.options, optimizer="momentum:0.5"))
    ours = run_cell(cell, tmp_path, None).curve("weak")
    plain = straight[TOGETHER].curve("weak")
    assert [point.scores for point in ours[:2]] == [point.scores for point in plain[:2]]
    assert ours[3].scores["validation_loss"] < plain[3].scores["validation_loss"]


# --- other data ----------------------------------------------------------------------------------


def save(file: Path, count: int = 60, seed: int = 0) -> Path:
    """Images of two classes: dark ones and bright ones."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = rng.integers(0, 100, (count, 12, 12, 1)) + 150 * labels[:, None, None, None]
    np.savez(file, images=images.astype(np.uint8), labels=labels)
    return file


def test_images_of_the_user(tmp_path: Path) -> None:
    data = save(tmp_path / "own.npz")
    options = SupervisedOptions(task="npz", rounds=2, examples_per_round=320, learning_rate=0.01)
    cell = cells(options)["isolated-weak"]
    result = run_cell(cell, tmp_path / "out", data)
    assert result.finals["weak"].scores["test_accuracy"] > 0.9
    unfinished = result_file(tmp_path / "out", cell)
    lines = unfinished.read_text(encoding="utf-8").splitlines(keepends=True)
    unfinished.write_text("".join(lines[:-1]), encoding="utf-8")
    other = save(tmp_path / "other.npz", seed=1)
    with pytest.raises(ExperimentError) as caught:
        run_cell(cell, tmp_path / "out", other)
    assert str(caught.value) == f"{cell.name} was begun with other data; give another --out."
    shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": np.zeros((9, 12, 12, 1)), "labels": np.zeros(9, int)},
         " holds float64[7, 12, 12, 1] to train with; a study needs uint8 images [count, height, "
         "width, channels]."),
        ({"images": np.zeros((9, 12, 12, 1), np.uint8), "labels": np.zeros(9)},
         " holds labels as float64[7]; the branch takes int32[7]."),
        ({"pictures": np.zeros(3)},
         " must be an .npz file with the arrays x_train, y_train, x_test, y_test, or x, y, or "
         "images, labels."),
    ],
)  # fmt: skip
def test_what_is_no_data_is_one_sentence(
    tmp_path: Path, arrays: dict[str, Any], sentence: str
) -> None:
    file = tmp_path / "bad.npz"
    np.savez(file, **arrays)
    cell = cells(SupervisedOptions(task="npz"))["isolated-weak"]
    with pytest.raises(StemshareError) as caught:
        run_cell(cell, tmp_path / "out", file)
    assert str(caught.value) == f"{file}{sentence}"
