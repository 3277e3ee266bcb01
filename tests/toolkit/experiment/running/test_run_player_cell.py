"""Whole cells of players: modes, engines and brokers agree, and a kill changes no number."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_sim.playing.dqn import DqnTask
from firmware_sim.training.runtime import Model
from profiles.errors import StemshareError
from toolkit.experiment.cell import Cell
from toolkit.experiment.players.cell import PlayerCell, PlayerOptions, plan
from toolkit.experiment.players.device import PlayerDevice
from toolkit.experiment.running.progress import rounds_done
from toolkit.experiment.running.results import Result, result_file
from toolkit.experiment.running.run_cell import run_cell
from toolkit.experiment.scores import Point
from toolkit.fleet.local import local_broker

pytestmark = pytest.mark.xdist_group("experiment")
OPTIONS = PlayerOptions(
    task="cartpole", rounds=4, steps_per_round=40, warm_up=60, exploration=100, replay=(200, 2_000),
    test_steps=100,
)  # fmt: skip
Straight = dict[PlayerCell, Result[Cell]]
Numbers = Callable[[Result[Cell]], dict[str, Any]]
RunAndKill = Callable[[Cell, Path, int], Result[Cell] | None]


def cells() -> dict[str, PlayerCell]:
    found = plan(
        OPTIONS, games=["cartpole"], settings=["isolated", "homogeneous", "heterogeneous"],
        topologies=["share-first", "two-loss"], modes=["sync", "async"], weak_rates=[0.5],
        seeds=[1],
    )  # fmt: skip
    return {
        f"{cell.setting}-{cell.topology}-{cell.mode}-{cell.participants}": cell for cell in found
    }


ALONE, WEAK_ALONE = cells()["isolated-any-any-powerful"], cells()["isolated-any-sync-weak"]
TOGETHER, FREE = (cells()[f"heterogeneous-share-first-{mode}-both"] for mode in ("sync", "async"))
ALIKE, CASCADED = cells()["homogeneous-any-sync-both"], cells()["heterogeneous-two-loss-sync-both"]


def steps(result: Result[Cell], device: str) -> list[float]:
    return [point.scores["steps"] for point in result.curve(device)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """The results of cells that nothing interrupted."""
    out = tmp_path_factory.mktemp("straight")
    run = (ALONE, WEAK_ALONE, TOGETHER, ALIKE, FREE, CASCADED)
    return {cell: run_cell(cell, out, None) for cell in run}


def test_devices_play_as_often_as_their_rates_say(straight: Straight) -> None:
    # The first step of a game is the first of a round; the warm-up comes before its mini-batch.
    whole = [60 + 40 * n - 1 for n in range(1, 5)]
    assert steps(straight[ALONE], "powerful") == whole
    assert steps(straight[TOGETHER], "powerful") == whole
    half = [60 + 20 * n - 1 for n in range(1, 5)]
    for cell in (WEAK_ALONE, TOGETHER, CASCADED):
        assert steps(straight[cell], "weak") == half
    assert steps(straight[FREE], "powerful") == whole
    assert steps(straight[FREE], "weak") == whole[:2]  # as long rounds, half as often


def test_a_final_is_the_mean_of_the_last_quarter(tmp_path: Path) -> None:
    long = replace(WEAK_ALONE, options=replace(OPTIONS, rounds=10, steps_per_round=4))
    result = run_cell(long, tmp_path, None)
    scores = [point.scores["score"] for point in result.curve("weak")]
    assert all(1 <= score <= 100 for score in scores)
    assert result.finals["weak"].scores == {"score": pytest.approx(np.mean(scores[-2:]))}


def test_the_header_says_what_becomes_of_a_killed_cell(straight: Straight) -> None:
    header = straight[FREE].header
    assert header["when_killed"] == "starts from its beginning"
    assert header["data"] == "cartpole"
    assert header["cell"] == json.loads(json.dumps(FREE.to_json()))


def test_updates_of_an_asynchronous_fleet_come_in_the_order_of_their_rates(
    straight: Straight,
) -> None:
    order = [(point.device, point.round) for point in straight[FREE].points]
    assert order == [
        ("powerful", 1), ("powerful", 2), ("weak", 1), ("powerful", 3), ("powerful", 4),
        ("weak", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("control", "fleet", "device"),
    [(ALONE, TOGETHER, "powerful"), (WEAK_ALONE, TOGETHER, "weak"), (WEAK_ALONE, CASCADED, "weak")],
)
def test_sharing_changes_what_is_learnt(
    straight: Straight, control: PlayerCell, fleet: PlayerCell, device: str
) -> None:
    """The first round is the same alone and in a fleet; then θ comes from both."""
    alone, together = (straight[cell].curve(device) for cell in (control, fleet))
    assert alone[0].scores == together[0].scores
    assert alone[1].scores["loss"] != together[1].scores["loss"]


def test_a_device_copies_its_target_as_often_alone_as_in_a_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what the copies do would be taken for what sharing does."""
    copies: dict[int, list[int]] = {}  # the device's steps, by the seed of its task
    plain = DqnTask.synchronised

    def copy(task: DqnTask, model: Model) -> None:
        copies.setdefault(int(task.state()["seed"]), []).append(task.steps_taken)
        plain(task, model)

    monkeypatch.setattr(DqnTask, "synchronised", copy)
    found = []
    for cell in (WEAK_ALONE, TOGETHER):
        copies.clear()
        run_cell(cell, tmp_path, None)
        found.append([steps for steps in copies[2 * cell.seed] if steps > 0])
    assert found == [[79, 99, 119, 139]] * 2


def test_everything_is_shared_where_all_are_alike(tmp_path: Path) -> None:
    devices = {}
    for name in ("weak", "powerful"):
        with (tmp_path / name).open("w") as log:
            devices[name] = PlayerDevice(ALIKE, None, name, log, lambda point: None)
    assert devices["weak"].shared == devices["powerful"].shared
    names = {tensor.name for tensor in devices["weak"].shared.tensors}
    assert names == {f"{layer}/{part}" for layer in ("stem", "hidden", "q_values")
                     for part in ("kernel", "bias")}  # fmt: skip


def test_both_engines_learn_the_same(straight: Straight, numbers: Numbers, tmp_path: Path) -> None:
    result = run_cell(replace(TOGETHER, options=replace(OPTIONS, engine="tf")), tmp_path, None)
    for ours, theirs in zip(
        numbers(result)["points"], numbers(straight[TOGETHER])["points"], strict=True
    ):
        assert (ours.device, ours.round) == (theirs.device, theirs.round)
        assert ours.scores["loss"] == pytest.approx(theirs.scores["loss"], rel=0.05)


@pytest.mark.parametrize("cell", [TOGETHER, FREE], ids=["sync", "async"])
def test_a_real_broker_gives_players_the_same_numbers(
    straight: Straight, numbers: Numbers, tmp_path: Path, cell: PlayerCell
) -> None:
    with local_broker(tmp_path / "broker", embedded=False) as broker:
        result = run_cell(cell, tmp_path, None, broker=broker)
    assert numbers(result) == numbers(straight[cell])


@pytest.mark.parametrize("cell", [ALONE, TOGETHER, FREE], ids=["alone", "sync", "async"])
def test_a_killed_cell_starts_from_its_beginning(
    straight: Straight,
    numbers: Numbers,
    run_and_kill: RunAndKill,
    tmp_path: Path,
    cell: PlayerCell,
) -> None:
    for points in (1, 3):
        assert run_and_kill(cell, tmp_path, points) is None
    assert result_file(tmp_path, cell).read_bytes().count(b'"point"') >= 1
    assert rounds_done(cell, tmp_path) == 0
    reported: list[Point] = []
    result = run_cell(cell, tmp_path, None, on_point=reported.append)
    assert numbers(result) == numbers(straight[cell])
    assert len(reported) == len(result.points)
    lines = result_file(tmp_path, cell).read_text(encoding="utf-8").splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds.count("header") == 1 and "resumed" not in kinds
    assert not (tmp_path / "state" / cell.name).exists()


def test_an_unknown_game_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StemshareError) as caught:
        run_cell(replace(ALONE, game="pong"), tmp_path, None)
    assert str(caught.value) == "the task cartpole is a game of its own and takes no 'pong'."
