"""Results on disk: one file of JSON lines for each cell; every line is durable once written.

    header    the cell, what happens after a kill, its data, commit and versions
    point     the scores of one device after one round
    resumed   the cell was killed and continues (with commit and versions, which may differ)
    final     the final scores of one device
    finished  the cell is complete

    supervised   points have validation_accuracy, validation_loss and, in rounds with a test,
                 test_accuracy; a final has those of best_round, the best one in validation. Of
                 numbers it is rmse instead of accuracy, of autoencoders reconstruction_error
    players      points have the score of a test episode, the number of steps of the device and
                 the mean loss of the round; a final has the mean score of the last points

A killed cell leaves an incomplete file, whose last line may be cut off. A supervised cell
continues it; a cell of players starts again with an empty file.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from broker.durable import sync_file, sync_path
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.running.kinds import read_cell
from toolkit.experiment.scores import Final, Point

FORMAT = 1
SUFFIX = ".jsonl"
C = TypeVar("C", bound=Cell, covariant=True)
K = TypeVar("K", bound=Cell)
_WHEN_KILLED = {True: "goes on", False: "starts from its beginning"}


@dataclass
class Result(Generic[C]):
    """The results of one cell."""

    cell: C
    header: dict[str, Any]
    points: list[Point] = field(default_factory=list)
    finals: dict[str, Final] = field(default_factory=dict)
    seconds: float | None = None  # duration of the last run; None if the cell is not finished

    @property
    def finished(self) -> bool:
        return self.seconds is not None

    @property
    def commit(self) -> str:
        """The commit that started the cell, abbreviated."""
        return (self.header["commit"] or "unknown")[:12]

    def curve(self, device: str) -> list[Point]:
        """Returns the points of one device."""
        return [point for point in self.points if point.device == device]


def result_file(folder: Path, cell: Cell) -> Path:
    """Returns the path of a cell's results in the folder of its study."""
    return folder / "cells" / f"{cell.name}{SUFFIX}"


def known_result(folder: Path, cell: Cell) -> Result[Cell] | None:
    """Returns the results of a cell in a folder, or None.

    Raises an ExperimentError if they are those of another configuration.
    """
    path = result_file(folder, cell)
    known = read_result(path)
    if known is not None and known.cell != cell:
        raise ExperimentError(
            f"{path} holds results of another configuration; give another --out, or the same "
            "options as before."
        )
    return known


def read_results(folder: Path) -> list[Result[Cell]]:
    """Returns the results of all finished cells of a study, ordered by name."""
    files = sorted((folder / "cells").glob(f"*{SUFFIX}"))
    if not files:
        raise ExperimentError(
            f"{folder} holds no results; `toolkit experiment` with --out {folder} makes some."
        )
    found = [read_result(file) for file in files]
    return [result for result in found if result is not None and result.finished]


def results_of(results: Iterable[Result[Cell]], cells: type[K]) -> list[Result[K]]:
    """Returns the results whose cells are of this class."""
    return [result for result in results if isinstance(result.cell, cells)]  # type: ignore[misc]


def read_result(file: Path) -> Result[Cell] | None:
    """Returns the results in a file; None if it does not exist or has no complete line."""
    try:
        lines = list(_lines(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{file} cannot be read ({error}).") from None
    if not lines:
        return None
    try:
        header = lines[0]
        if (header["kind"], header["format"]) != ("header", FORMAT):
            raise ExperimentError(f"{file} was written by another version.")
        result = Result(read_cell(header["cell"]), header)
        for line in lines[1:]:
            _add(result, dict(line))
    except (KeyError, TypeError):
        raise ExperimentError(f"{file} holds no results of a cell.") from None
    return result


def _add(result: Result[Cell], line: dict[str, Any]) -> None:
    match line.pop("kind"):
        case "point":
            result.points.append(Point(line.pop("device"), line.pop("round"), line))
        case "final":
            device = line.pop("device")
            result.finals[device] = Final(device, line)
        case "finished":
            result.seconds = line["seconds"]


def _lines(text: str) -> Iterator[dict[str, Any]]:
    """Yields the complete lines; the last one may be cut off."""
    for line in text.split("\n")[:-1]:
        yield json.loads(line)


class ResultWriter:
    """Appends to the file of one cell; when a method returns, its line is durable.

    The devices of a cell are threads, which share one writer.
    """

    def __init__(self, folder: Path, cell: Cell, **about: Any) -> None:
        self._lock = threading.Lock()
        path = result_file(folder, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = read_result(path) if cell.resumes else None
        self._file = path.open("r+b" if cell.resumes and path.exists() else "w+b")
        self._file.truncate(self._file.read().rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)
        if known is None:
            sync_path(path.parent)
            killed = {"when_killed": _WHEN_KILLED[cell.resumes]}
            self._write("header", format=FORMAT, cell=cell.to_json(), **killed, **about)
        else:
            self._write("resumed", **about)
        self.known = known or Result(cell, {})
        self._seen = {(point.device, point.round) for point in self.known.points}

    def point(self, point: Point) -> None:
        """Writes a point unless the file has it: a round may be trained again after a kill."""
        with self._lock:
            if (point.device, point.round) not in self._seen:
                self._seen.add((point.device, point.round))
                self._write("point", device=point.device, round=point.round, **point.scores)

    def final(self, final: Final) -> None:
        """Writes the final scores of a device unless the file has them."""
        if final.device not in self.known.finals:
            self._write("final", device=final.device, **final.scores)

    def finish(self, seconds: float) -> None:
        """Writes that the cell is complete."""
        self._write("finished", seconds=round(seconds, 3))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, kind: str, **fields: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        sync_file(self._file)
