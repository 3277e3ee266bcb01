"""Finds processes that a test has started and not ended.

Every process inherits the environment of the one that started it, whatever session or group it
moves to, so a variable that only this run has marks all of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "STEMSHARE_TEST_PROCESS"
GRACE_SECONDS = 10.0  # for those that are just ending


@dataclass(frozen=True)
class Process:
    """A running process, and the command that it runs."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid}: {self.command}"


def started_by(pid: int) -> list[Process]:
    """Returns the running processes that the process `pid` has started, directly or not."""
    return list(_marked(f"{MARK}={pid}".encode()))


def end_left_behind(pid: int, grace_seconds: float = GRACE_SECONDS) -> list[Process]:
    """Kills what is still running after a while, and returns it."""
    deadline = time.monotonic() + grace_seconds
    while (left := started_by(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return left


def _marked(mark: bytes) -> Iterator[Process]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if (folder / "stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z":
                continue
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
        command = b" ".join(words).decode(errors="replace")
        # Python's own helper lives as long as the process that uses multiprocessing.
        if int(folder.name) != os.getpid() and "multiprocessing.resource_tracker" not in command:
            yield Process(int(folder.name), command)
