"""Processes that tests start: they can be interrupted, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.left_behind import end_left_behind, started_by

ROOT = Path(__file__).parents[1]
SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]


def sleeper() -> subprocess.Popen[bytes]:
    """A process in a session of its own, which is asleep by now."""
    process = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_process_that_is_left_behind_is_found_and_ended() -> None:
    with sleeper() as process:
        assert process.pid in {found.pid for found in started_by(os.getpid())}
        (left,) = end_left_behind(os.getpid(), grace_seconds=0)
        assert (left.pid, left.command) == (process.pid, " ".join(SLEEP))
        assert process.wait(10) == -signal.SIGKILL
    assert end_left_behind(os.getpid(), grace_seconds=0) == []


def test_a_child_can_be_interrupted() -> None:
    with sleeper() as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT


def test_a_child_can_be_interrupted_though_the_tests_cannot() -> None:
    """As under `nohup make test &`."""
    test = f"{Path(__file__).relative_to(ROOT)}::{test_a_child_can_be_interrupted.__name__}"
    pytest = f"{sys.executable} -m pytest -p no:cacheprovider -p no:xdist {test}"
    ran = subprocess.run(
        ["sh", "-c", f"trap '' INT; exec {pytest}"], cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout
