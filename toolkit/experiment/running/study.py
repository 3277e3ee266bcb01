"""Runs a study: all cells that are not finished, with a display of the progress."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from broker.transport.address import Address
from toolkit.errors import Interrupted
from toolkit.experiment.cell import Cell
from toolkit.terminal import quiet_terminal

# How devices reach their aggregator: a broker in memory; mosquitto, or the embedded broker if
# mosquitto is not installed; always the embedded broker.
Link = Literal["memory", "mqtt", "embedded"]
Beside = Callable[[Address], AbstractContextManager[None]]


def run_study(
    cells: Sequence[Cell],
    out: Path,
    data: Path | None,
    *,
    link: Link = "memory",
    jobs: int | None = None,
    ray: bool = False,
    beside: Beside | None = None,
) -> None:
    """Runs all unfinished cells and shows the progress; `beside` is entered once there is a broker.

    Raises Interrupted after Ctrl-C or SIGTERM, when all processes of the study have ended.
    """
    try:
        with _sigterm_interrupts():
            _run(cells, out, data, link, jobs or os.cpu_count() or 1, ray, beside)
    except KeyboardInterrupt:
        kept = f"{out} keeps every finished {_kept(cells)}, the same command goes on"
        raise Interrupted(kept) from None


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Handles SIGTERM as Python handles Ctrl-C, so that workers and the broker are stopped.

    SIGINT is left as it is: where the shell has set it to be ignored, the study runs in the
    background, and Ctrl-C is meant for the foreground.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread of a process can handle signals
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _kept(cells: Sequence[Cell]) -> str:
    return "round" if all(cell.resumes for cell in cells) else "cell"


def _run(
    cells: Sequence[Cell],
    out: Path,
    data: Path | None,
    link: Link,
    jobs: int,
    ray: bool,
    beside: Beside | None,
) -> None:
    with contextlib.ExitStack() as stack:
        console = stack.enter_context(quiet_terminal())
        status = stack.enter_context(console.status("reading earlier results"))
        from toolkit.experiment.running.kinds import prepare_workloads
        from toolkit.experiment.running.progress import show_progress
        from toolkit.experiment.running.workers import Work, run_here, run_on_ray, unfinished
        from toolkit.fleet.local import local_broker
        from toolkit.writing import make_folder

        make_folder(out)
        missing = unfinished(cells, out)
        if not missing:
            return
        data = prepare_workloads(missing, data, status.update)
        status.stop()
        broker = None
        if link != "memory":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            broker = stack.enter_context(local_broker(folder, embedded=link == "embedded"))
            if beside is not None:
                stack.enter_context(beside(broker))
        work = Work(out, data, broker)
        observer = stack.enter_context(show_progress(console, missing, out))
        if ray:
            run_on_ray(missing, work, observer)
        else:
            run_here(missing, work, observer, jobs=jobs)
