"""`toolkit experiment` and `toolkit figures` as a user meets them: killed, stopped, mistyped."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.left_behind import started_by
from tests.harness.waiting import wait_until
from toolkit.experiment.running.results import Result, read_results

pytestmark = pytest.mark.xdist_group("experiment-command")
PATIENCE = 180.0  # seconds until a test gives up
SHORT = ("--modes", "heterogeneous", "--topology", "cascading", "--weak-fraction", "0.2",
         "--seeds", "1", "--rounds", "12", "--examples", "96", "--jobs", "1")  # fmt: skip
Toolkit = Callable[..., Any]


def command(out: Path, *options: str) -> subprocess.Popen[str]:
    toolkit = Path(sys.executable).with_name("toolkit")
    line = [str(toolkit), "experiment", "digits", "--out", str(out)]
    return subprocess.Popen(
        [*line, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def numbers(results: list[Result[Any]]) -> dict[str, Any]:
    return {
        result.cell.name: (
            sorted(result.points, key=lambda point: (point.device, point.round)),
            result.finals,
        )
        for result in results
    }


def points(out: Path) -> int:
    return sum(file.read_bytes().count(b'"point"') for file in (out / "cells").glob("*"))


def test_killed_and_started_again(tmp_path: Path) -> None:
    """SIGKILL of the command in the middle; its processes end by themselves, and the same command
    ends with the numbers of a run that nobody killed: of a process with the same threads, on which
    the order of TensorFlow's sums depends."""
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    running = command(killed, *SHORT)

    def in_the_middle() -> bool:
        assert running.poll() is None, running.communicate()
        return points(killed) >= 9

    wait_until(in_the_middle, "nine points", PATIENCE)
    running.kill()
    running.communicate(timeout=PATIENCE)
    assert read_results(killed) == [], "it was killed before a cell was finished"
    reached = points(killed)
    again = command(killed, *SHORT)
    said, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert said == f"1 cell is in {killed}; `toolkit figures {killed}` draws it\n"
    assert re.search(r"^1/1 heterogeneous_cascading_both_weak-0\.", errors, re.MULTILINE)
    assert 9 <= reached < 26 == points(killed)  # 2 devices, 13 points
    results = read_results(killed)
    _, errors = command(straight, *SHORT).communicate(timeout=PATIENCE)
    assert numbers(results) == numbers(read_results(straight)), errors
    kinds = [
        json.loads(line)["kind"]
        for file in (killed / "cells").glob("*")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    assert kinds.count("resumed") >= 1


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    running = command(tmp_path, "--rounds", "100000", "--seeds", "1", "--jobs", "1")

    def has_a_worker() -> bool:
        assert running.poll() is None, running.communicate()
        return any("spawn_main" in process.command for process in started_by(os.getpid()))

    wait_until(has_a_worker, "a worker", PATIENCE)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert errors == (
        f"interrupted; {tmp_path} keeps every finished round, the same command goes on\n"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("digits", "--modes", "alone"),
         "there is no mode 'alone'; there are isolated, homogeneous, heterogeneous."),
        (("digits", "--topology", "ring"),
         "there is no topology 'ring'; there are share-first, cascading, two-loss."),
        (("digits", "--weak-fraction", "0.1,2"),
         "the weak device cannot hold 2 of the data: take more than 0 and less than 1, as 0.05 "
         "is."),
        (("digits", "--weak-fraction", "some"),
         "'some' does not list fractions, as 0.05,0.5 does."),
        (("digits", "--split", "by-class"),
         "there is no split 'by-class'; there are iid and dirichlet:ALPHA, as dirichlet:0.5."),
        (("npz",), "the task npz needs --data."),
        (("cartpole", "--game", "pong"),
         "the task cartpole is a game of its own and takes no 'pong'."),
        (("minatar", "--game", "go"),
         "there is no MinAtar game 'go'; there are asterix, breakout, freeway, seaquest, "
         "space_invaders."),
        (("cartpole", "--weak-rate", "0,1"),
         "the weak device cannot play at 0 of the powerful one's rate: take more than 0 and at "
         "most 1, as 0.25 is."),
        (("cartpole", "--coordinator", "both"),
         "there is no coordinator 'both'; there are sync, async."),
    ],
)  # fmt: skip
def test_what_is_mistyped_is_one_sentence(
    toolkit: Toolkit, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    assert toolkit("experiment", *options, "--out", tmp_path).refusal == sentence


def test_missing_data_are_one_sentence(toolkit: Toolkit, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    said = toolkit("experiment", "cifar10", "--data", nowhere, "--out", tmp_path / "out").refusal
    assert said == (
        f"{nowhere} holds neither data_batch_1 nor data_batch_1.bin, as the folder unpacked from "
        "CIFAR-10's python or binary version does."
    )
    said = toolkit("experiment", "npz", "--data", nowhere, "--out", tmp_path / "out").refusal
    assert said == f"{nowhere} cannot be read (No such file or directory)."


def test_ray_is_optional(toolkit: Toolkit, tmp_path: Path) -> None:
    said = toolkit("experiment", "digits", "--ray", "--out", tmp_path).refusal
    assert said == "--ray needs Ray: pip install ray."
    said = toolkit("experiment", "digits", "--ray", "--mqtt", "--out", tmp_path).refusal
    assert said == "--ray does not go with --mqtt, whose broker only this machine reaches."


def test_no_results_are_one_sentence(toolkit: Toolkit, tmp_path: Path) -> None:
    said = toolkit("figures", tmp_path).refusal
    assert said == (
        f"{tmp_path} holds no results; `toolkit experiment` with --out {tmp_path} makes some."
    )


def test_help_teaches_with_examples(toolkit: Toolkit) -> None:
    ran = toolkit("experiment", "--help")
    assert ran.code == 0
    assert "toolkit experiment cifar10 --rounds 200" in ran.out
    assert "toolkit figures results/digits" in toolkit("figures", "--help").out


def test_players_from_command_to_figure(toolkit: Toolkit, tmp_path: Path) -> None:
    """A whole study over processes, and a second one that has nothing left to do."""
    options = ("--modes", "heterogeneous", "--topology", "share-first", "--coordinator",
               "sync,async", "--weak-rate", "0.5", "--seeds", "1", "--steps", "140",
               "--warm-up", "60", "--sync-every", "20",
               "--jobs", "1", "--out", tmp_path)  # fmt: skip
    for ended in (2, 0):
        ran = toolkit("experiment", "cartpole", *options)
        assert ran.code == 0, ran.err
        assert ran.out == f"2 cells are in {tmp_path}; `toolkit figures {tmp_path}` draws them\n"
        assert len(ran.err.splitlines()) == ended
    sync, free = sorted(read_results(tmp_path), key=lambda result: -len(result.points))
    assert (len(sync.points), len(free.points)) == (8, 6)  # 4 of each, or 4 and 2
    ran = toolkit("figures", tmp_path)
    assert "1 seed; 4 rounds of 20 steps of the powerful device" in " ".join(ran.out.split())
    assert [Path(line).name for line in ran.out.splitlines()[-5:]] == [
        "rl.png", "rl.svg", "rl_async.png", "rl_async.svg", "table.md",
    ]  # fmt: skip


def test_help_says_what_becomes_of_a_killed_cell(toolkit: Toolkit) -> None:
    played = " ".join(toolkit("experiment", "cartpole", "--help").out.split())
    assert "A cell that was killed starts from its beginning; finished ones stay." in played
    told = " ".join(toolkit("experiment", "digits", "--help").out.split())
    assert "One that was killed goes on where it was" in told
