"""Runs many cells: in worker processes on this machine, or as tasks of a Ray cluster.

A worker runs one cell after the other, so that TensorFlow starts once for many of them. A worker
ends when the process that started it ends, in whatever way.
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
from typing import Any

from broker.transport.address import Address
from profiles.errors import StemshareError
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.running.progress import Observer, rounds_done
from toolkit.experiment.running.results import known_result, result_file
from toolkit.lean_keras import keep_keras_lean


@dataclass(frozen=True)
class Work:
    """What all workers of a study need to know."""

    out: Path
    data: Path | None
    broker: Address | None = None  # None: a broker in memory for each cell


def unfinished(cells: Sequence[Cell], out: Path) -> list[Cell]:
    """Returns the cells that are still to be run.

    Raises an ExperimentError if the folder has results of another configuration.
    """
    known = {cell: known_result(out, cell) for cell in cells}
    return [cell for cell, result in known.items() if result is None or not result.finished]


def run_here(cells: Sequence[Cell], work: Work, observer: Observer, *, jobs: int) -> None:
    """Runs the cells, `jobs` of them at a time.

    If cells fail, the others are still run; then an ExperimentError reports the failures.
    """
    waiting, failures = list(cells), list[str]()
    workers: list[_Worker] = []
    try:
        for _ in range(min(jobs, len(waiting))):
            workers.append(_Worker(work))
        while waiting or any(worker.cell for worker in workers):
            for worker in workers:
                if worker.cell is None and waiting:
                    cell = waiting.pop(0)
                    observer.began(cell, rounds_done(cell, work.out))
                    worker.assign(cell)
            for connection in wait([w.connection for w in workers if w.cell]):
                worker = next(w for w in workers if w.connection is connection)
                _receive(worker, observer, failures)
    finally:
        for worker in workers:
            worker.stop()
    _report(failures)


def _receive(worker: _Worker, observer: Observer, failures: list[str]) -> None:
    cell = worker.cell
    assert cell is not None
    match worker.receive():
        case int(round):
            observer.reached(cell, round)
        case str(failure):
            failures.append(f"{cell.name}: {failure}")
            worker.cell = None
            observer.ended(cell)
        case None:
            worker.cell = None
            observer.ended(cell)


def _report(failures: Sequence[str]) -> None:
    if failures:
        count = "a cell" if len(failures) == 1 else f"{len(failures)} cells"
        raise ExperimentError(f"{count} could not be run: {failures[0]}")


class _Worker:
    """A worker process, and the cell that it is running."""

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

    def assign(self, cell: Cell) -> None:
        self.cell = cell
        self.connection.send(cell)

    def receive(self) -> int | str | None:
        """Returns the number of a trained round, the reason of a failure, or None at the end."""
        try:
            message: int | str | None = self.connection.recv()
        except (EOFError, ConnectionError):
            self.stop()
            code = self._process.exitcode
            self._start()
            return f"its process ended with exit code {code}; the same command goes on."
        return message

    def stop(self) -> None:
        self._process.kill()  # results and checkpoints are durable
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, work: Work) -> None:
    """Runs in a worker: receives cells, and sends the rounds that they reach."""
    # Explicit, whatever was inherited: Ctrl-C is for the parent, which then stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_keras_lean()
    lock = threading.Lock()

    def send(message: int | str | None) -> None:
        with lock:  # the devices of a cell are threads
            connection.send(message)

    while True:
        try:
            cell: Cell = connection.recv()
        except EOFError:
            return
        send(run_and_report(cell, work, send))


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_and_report(cell: Cell, work: Work, on_round: Callable[[int], None]) -> str | None:
    """Runs a cell in this process with one thread; returns the reason if it failed, else None."""
    try:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        from toolkit.experiment.running.run_cell import run_cell

        run_cell(
            cell,
            work.out,
            work.data,
            broker=work.broker,
            on_point=lambda point: on_round(point.round),
        )
    except StemshareError as error:
        return str(error)
    except Exception:
        return f"something unforeseen happened: {traceback.format_exc(limit=-3)}"
    return None


def run_on_ray(cells: Sequence[Cell], work: Work, observer: Observer) -> None:
    """Runs the cells on the Ray cluster of RAY_ADDRESS, or on this machine's cores.

    The folder should be on a file system that all machines share: otherwise a killed cell cannot
    be resumed on another machine. Finished results are copied back in any case.
    """
    if work.broker is not None:
        raise ExperimentError(
            "--ray does not go with --mqtt, whose broker only this machine reaches."
        )
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ExperimentError("--ray needs Ray: pip install ray.") from None
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
            observer.ended(cell)
    finally:
        ray.shutdown()
    _report(failures)


def _on_ray(cell: Cell, work: Work) -> tuple[str | None, bytes]:
    failure = run_and_report(cell, work, lambda round: None)
    return failure, b"" if failure else result_file(work.out, cell).read_bytes()
