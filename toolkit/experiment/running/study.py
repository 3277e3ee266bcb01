"""Runs a study: what is missing of it, with a view of how far it is."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from toolkit.errors import Interrupted
from toolkit.experiment.cell import Cell
from toolkit.experiment.players.cell import RlCell
from toolkit.experiment.supervised.cell import SupervisedCell
from toolkit.terminal import quiet_terminal

DATA = Path("data")  # where CIFAR-10 is downloaded to
# How devices reach their aggregator: within a process, over mosquitto if it is installed, or over
# the embedded broker.
Link = Literal["memory", "mqtt", "embedded"]


def run_study(
    cells: Sequence[Cell],
    out: Path,
    data: Path | None,
    *,
    link: Link = "memory",
    jobs: int | None = None,
    ray: bool = False,
) -> None:
    """Runs what is missing, and shows how far it is."""
    try:
        _run(cells, out, data, link, jobs or os.cpu_count() or 1, ray)
    except KeyboardInterrupt:
        kept = f"{out} keeps every finished {_kept(cells)}, the same command goes on"
        raise Interrupted(kept) from None


def _kept(cells: Sequence[Cell]) -> str:
    return "round" if all(cell.goes_on for cell in cells) else "cell"


def _run(
    cells: Sequence[Cell], out: Path, data: Path | None, link: Link, jobs: int, ray: bool
) -> None:
    with contextlib.ExitStack() as stack:
        console = stack.enter_context(quiet_terminal())
        status = stack.enter_context(console.status("looking at what there is"))
        from toolkit.experiment.players.games import checked_environment
        from toolkit.experiment.running.progress import watching
        from toolkit.experiment.running.workers import Work, run_here, run_on_ray, unfinished
        from toolkit.experiment.supervised.data import read_task
        from toolkit.experiment.supervised.download import fetch_cifar10
        from toolkit.fleet.local import local_broker
        from toolkit.writing import make_folder

        make_folder(out)
        missing = unfinished(cells, out)
        if not missing:
            return
        # What is wrong with games or data is said once, and now.
        for environment in {cell.environment for cell in cells if isinstance(cell, RlCell)}:
            with checked_environment(environment):
                pass
        for task in {cell.settings.task for cell in cells if isinstance(cell, SupervisedCell)}:
            if task == "cifar10" and data is None:
                data = fetch_cifar10(DATA, status.update)
            status.update("reading the data")
            read_task(task, data)
            read_task.cache_clear()  # every process that runs cells has its own
        status.stop()
        broker = None
        if link != "memory":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            broker = stack.enter_context(local_broker(folder, embedded=link == "embedded"))
        work = Work(out, data, broker)
        watch = stack.enter_context(watching(console, missing, out))
        if ray:
            run_on_ray(missing, work, watch)
        else:
            run_here(missing, work, watch, jobs=jobs)
