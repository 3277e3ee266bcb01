"""Runs many cells: in processes of their own on this machine, or as tasks of a Ray cluster.

A process runs one cell after the other, so that TensorFlow starts once for many of them. Whatever
becomes of us, no process is left behind: they end when we end.
"""

from __future__ import annotations

import importlib
import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from broker.transport.address import Address
from profiles.errors import StemshareError
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.running.results import known_result, result_file


class Watch(Protocol):
    """Whoever wants to know how far the cells are."""

    def began(self, cell: Cell, round: int) -> None: ...

    def reached(self, cell: Cell, round: int) -> None: ...

    def ended(self, cell: Cell) -> None: ...


@dataclass(frozen=True)
class Work:
    """Where cells are run, and with what."""

    out: Path
    data: Path | None
    broker: Address | None = None  # None: one in memory for each cell


def unfinished(cells: Sequence[Cell], out: Path) -> list[Cell]:
    """Those still to be run; a folder with results of another configuration is refused."""
    known = {cell: known_result(out, cell) for cell in cells}
    return [cell for cell, result in known.items() if result is None or not result.finished]


def rounds_done(cell: Cell, out: Path) -> int:
    known = known_result(out, cell) if cell.goes_on else None
    return max((point.round for point in known.points), default=0) if known else 0


def run_here(cells: Sequence[Cell], work: Work, watch: Watch, *, jobs: int) -> None:
    """Runs the cells, `jobs` of them at a time; if some fail, the others are still run."""
    waiting, failures = list(cells), list[str]()
    workers = [_Worker(work) for _ in range(min(jobs, len(waiting)))]
    try:
        while waiting or any(worker.cell for worker in workers):
            for worker in workers:
                if worker.cell is None and waiting:
                    cell = waiting.pop(0)
                    watch.began(cell, rounds_done(cell, work.out))
                    worker.give(cell)
            for connection in wait([w.connection for w in workers if w.cell]):
                worker = next(w for w in workers if w.connection is connection)
                _listen(worker, watch, failures)
    finally:
        for worker in workers:
            worker.stop()
    _report(failures)


def _listen(worker: _Worker, watch: Watch, failures: list[str]) -> None:
    cell = worker.cell
    assert cell is not None
    match worker.hear():
        case int(round):
            watch.reached(cell, round)
        case str(failure):
            failures.append(f"{cell.name}: {failure}")
            worker.cell = None
            watch.ended(cell)
        case None:
            worker.cell = None
            watch.ended(cell)


def _report(failures: Sequence[str]) -> None:
    if failures:
        count = "a cell" if len(failures) == 1 else f"{len(failures)} cells"
        raise ExperimentError(f"{count} could not be run: {failures[0]}")


class _Worker:
    """A process, and the cell that it is running."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.cell: Cell | None = None
        self._start()

    def _start(self) -> None:
        context = mp.get_context("spawn")  # TensorFlow does not survive a fork
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._work), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process ends the connection

    def give(self, cell: Cell) -> None:
        self.cell = cell
        self.connection.send(cell)

    def hear(self) -> int | str | None:
        """A round that is reached, or why the cell failed, or None at its end."""
        try:
            said: int | str | None = self.connection.recv()
        except (EOFError, ConnectionError):
            self.stop()
            code = self._process.exitcode
            self._start()
            return f"its process ended with exit code {code}; the same command goes on."
        return said

    def stop(self) -> None:
        self._process.kill()  # results and checkpoints are durable
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, work: Work) -> None:
    """The life of a process: cells come in, rounds go out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lock = threading.Lock()

    def tell(what: int | str | None) -> None:
        with lock:  # the devices of a cell are threads
            connection.send(what)

    while True:
        try:
            cell: Cell = connection.recv()
        except EOFError:
            return
        tell(run_or_say_why_not(cell, work, tell))


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_or_say_why_not(cell: Cell, work: Work, reached: Callable[[int], None]) -> str | None:
    """Runs a cell in this process, in one thread; answers a sentence if it failed."""
    try:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        from toolkit.experiment.running.run_cell import run_cell

        run_cell(
            cell, work.out, work.data, broker=work.broker, heard=lambda point: reached(point.round)
        )
    except StemshareError as error:
        return str(error)
    except Exception:
        return f"something unforeseen happened: {traceback.format_exc(limit=-3)}"
    return None


def run_on_ray(cells: Sequence[Cell], work: Work, watch: Watch) -> None:
    """Runs the cells on the Ray cluster of RAY_ADDRESS, or on this machine's cores.

    Their folder is best on a file system that all machines share: only there can a cell that was
    killed go on. Finished results come back in any case.
    """
    if work.broker is not None:
        raise ExperimentError(
            "--ray does not go with --mqtt, whose broker only this machine reaches."
        )
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ExperimentError("--ray needs Ray: pip install 'stemshare[ray]'.") from None
    ray.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=False)
    absolute = Work(work.out.resolve(), work.data and work.data.resolve())
    remote = ray.remote(num_cpus=1)(_on_ray)
    failures: list[str] = []
    try:
        running = {remote.remote(cell, absolute): cell for cell in cells}
        while running:
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            cell = running.pop(done)
            failure, content = ray.get(done)
            if failure is not None:
                failures.append(f"{cell.name}: {failure}")
            else:
                path = result_file(work.out, cell)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            watch.ended(cell)
    finally:
        ray.shutdown()
    _report(failures)


def _on_ray(cell: Cell, work: Work) -> tuple[str | None, bytes]:
    failure = run_or_say_why_not(cell, work, lambda round: None)
    return failure, b"" if failure else result_file(work.out, cell).read_bytes()
