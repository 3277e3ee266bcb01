"""`toolkit demo`: the study in a few seconds, and what a signal leaves behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.left_behind import started_by
from tests.harness.waiting import wait_until
from toolkit.experiment.running.results import read_results, results_of
from toolkit.experiment.supervised.cell import SupervisedCell

pytestmark = pytest.mark.xdist_group("demo")
PATIENCE = 180.0  # seconds until a test gives up
Toolkit = Callable[..., Any]


def long_demo(out: Path, **how: Any) -> subprocess.Popen[str]:
    program = str(Path(sys.executable).with_name("toolkit"))
    command = [program, "demo", "--out", str(out), "--rounds", "100000"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **how)


def wait_for_workers_and_broker(running: subprocess.Popen[str]) -> None:
    def started() -> bool:
        assert running.poll() is None, running.communicate()
        commands = [process.command for process in started_by(os.getpid())]
        workers = [command for command in commands if "spawn_main" in command]
        brokers = [command for command in commands if "mosquitto" in command]
        return len(brokers) == 1 and len(workers) >= min(2, os.cpu_count() or 1)

    wait_until(started, "workers and a broker", PATIENCE)


def wait_for_the_end() -> None:
    """Fails unless all of them end, some a moment after the process that started them."""
    wait_until(lambda: not started_by(os.getpid()), "the end of all processes", PATIENCE)


def test_a_short_demo(toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, the figure and the results agree."""
    out = tmp_path / "demo"
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one worker starts TensorFlow once
    ran = toolkit("demo", "--out", out, "--rounds", "2", "--steps", "2", "--seeds", "1")
    assert ran.code == 0, ran.err
    results = results_of(read_results(out / "study"), SupervisedCell)
    assert len(results) == 4  # weak alone, powerful alone, alike, each as it can
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ran.out.splitlines()]
    first = rows.index(["weak, 5 %", "", "", "", ""])
    found = {row[0]: row[1:] for row in rows[first + 1 : first + 4]}
    expected = {
        result.cell.topology: 100 * result.finals["weak"].scores["test_accuracy"]
        for result in results
        if "weak" in result.finals and result.cell.weak_fraction == 0.05
        if result.cell.setting in ("isolated", "heterogeneous")
    }
    gain = expected["two-loss"] - expected["any"]
    assert found["isolated"] == [f"{expected['any']:.1f}", "", "", "1"]
    assert found["two-loss"][:2] == [f"{expected['two-loss']:.1f}", f"{gain:+.2f}"]
    assert (out / "supervised.png").read_bytes().startswith(b"\x89PNG")
    assert ran.out.splitlines()[-1] == f"the picture is in {out / 'supervised.png'}"


def test_ctrl_c_stops_all_children_and_says_what_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    running = long_demo(out)
    wait_for_workers_and_broker(running)
    running.send_signal(signal.SIGINT)
    assert_interrupted(running, out)
    wait_for_the_end()


def test_no_process_is_left_when_the_demo_is_killed(tmp_path: Path) -> None:
    """SIGKILL gives no time to stop the workers and the broker; they end by themselves."""
    running = long_demo(tmp_path / "demo")
    wait_for_workers_and_broker(running)
    running.kill()
    running.communicate(timeout=PATIENCE)
    wait_for_the_end()


def test_in_the_background_ctrl_c_is_ignored_and_sigterm_is_not(tmp_path: Path) -> None:
    """A shell without job control starts `toolkit demo &` with SIGINT ignored."""

    def ignore_ctrl_c() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    out = tmp_path / "demo"
    running = long_demo(out, preexec_fn=ignore_ctrl_c)
    wait_for_workers_and_broker(running)
    running.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.5)
    running.terminate()
    assert_interrupted(running, out)
    wait_for_the_end()


def assert_interrupted(running: subprocess.Popen[str], out: Path) -> None:
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert errors == f"interrupted; all processes are stopped; {out} keeps what they had\n"


def test_a_mosquitto_that_does_not_start_is_one_sentence(
    toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "mosquitto"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho Error: no memory\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    said = toolkit("demo", "--out", tmp_path / "demo", "--rounds", "1").refusal
    assert said == "mosquitto did not start and said: Error: no memory."
