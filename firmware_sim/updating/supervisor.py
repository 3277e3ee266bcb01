"""The trial of a pack: a child tries it, and the parent looks after the child.

The child is a fork, so it shares the parent's memory. Whatever it does, be it an error, an abort in
the runtime, a hang, more memory than the kernel gives, ends the child alone; the parent then rolls
back and starts the program again with the pack of before. Kill both, and the next start goes on:
the files in `packs/` say that there is a trial (`firmware_sim/packs/trial.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from broker.child_process import ending_with_parent
from broker.log import Log
from broker.systemd import Watchdog
from firmware_sim.errors import RESTART
from firmware_sim.packs.installed import Packs
from firmware_sim.packs.places import PACKS
from firmware_sim.packs.trial import TRIAL, Trial
from profiles.errors import INTERRUPTED

_POLL_SECONDS = 0.1
_LONGEST_SENTENCE = 1000  # bytes


@dataclass(frozen=True)
class OnTrial:
    """This process tries a pack."""

    report: int  # a pipe to the parent

    def failed(self, sentence: str) -> None:
        """Tells the parent why this process ends."""
        with contextlib.suppress(OSError):
            os.write(self.report, sentence.encode()[:_LONGEST_SENTENCE])


def start_again() -> NoReturn:
    """Replaces this process by the same command; its locks and links end with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def try_out(state: Path, log: Log) -> OnTrial | None:
    """Returns None if no pack is on trial, and otherwise in the child; the parent never returns."""
    if not (state / PACKS / TRIAL).exists():
        return None
    packs = Packs(state)
    try:
        trial = packs.start_trial()
        if trial is None:
            failed = packs.failed
            log.event("pack_rolled_back", version=failed.version, reason=failed.text)
    finally:
        packs.close()
    if trial is None:
        return None
    reading, writing = os.pipe()
    tie = ending_with_parent(signal.SIGKILL)
    child = os.fork()
    if child == 0:
        os.close(reading)
        if tie:
            tie()
        return OnTrial(writing)
    os.close(writing)
    _look_after(child, reading, state, trial, log)


def _look_after(child: int, report: int, state: Path, trial: Trial, log: Log) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: _send(child, got))
    watchdog = Watchdog()
    watchdog.ready()
    code = _wait(child, time.monotonic() + trial.within, watchdog.alive)
    said = os.read(report, _LONGEST_SENTENCE).decode(errors="replace")
    if code == RESTART:
        start_again()
    packs = Packs(state)
    if code in (0, INTERRUPTED):
        packs.forgive_start()
        sys.exit(code)
    packs.roll_back(said or _why(code, trial))
    failed = packs.failed
    log.event("pack_rolled_back", version=failed.version, reason=failed.text)
    packs.close()
    start_again()


def _wait(child: int, deadline: float, alive: Callable[[], None]) -> int | None:
    """Returns the exit code, negative for a signal, or None if the time was up."""
    late = False
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return None if late else os.waitstatus_to_exitcode(status)
        alive()
        if not late and time.monotonic() > deadline:
            late = True
            _send(child, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _why(code: int | None, trial: Trial) -> str:
    if code is None:
        return f"it has not finished a round within {trial.within} s"
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"the device ended with {how}"


def _send(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
