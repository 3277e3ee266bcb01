"""Results on disk: one file of JSON lines for each cell, durable line by line.

    header    the cell, what becomes of it if it is killed, its data, commit, versions
    point     scores of one device after one round
    resumed   the cell was killed and goes on (commit and versions, should they differ)
    final     what one device is worth in the end
    finished  nothing is missing

    supervised   points have validation_accuracy, validation_loss and, where it was tested,
                 test_accuracy; a final has those of best_round, which validated best
    players      points have the score of a test episode, the device's steps so far and the mean
                 loss of the round; a final has the mean score of the last points

A cell that is killed leaves a file without its end, perhaps with half a line. A supervised cell
goes on there; the cell of a player starts from its beginning, and so does its file.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from broker.durable import sync_file, sync_path
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.players import cell as rl_cell
from toolkit.experiment.players.cell import RlCell
from toolkit.experiment.supervised.cell import SupervisedCell

FORMAT = 1
SUFFIX = ".jsonl"
C = TypeVar("C", bound=Cell, covariant=True)
K = TypeVar("K", bound=Cell)
_AFTER_A_KILL = {True: "goes on", False: "starts from its beginning"}


@dataclass(frozen=True)
class Point:
    """A device's scores after `round` rounds."""

    device: str
    round: int
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Final:
    """A device's scores after the whole cell."""

    device: str
    scores: Mapping[str, float]


@dataclass
class Result(Generic[C]):
    """What is known of a cell."""

    cell: C
    header: dict[str, Any]
    points: list[Point] = field(default_factory=list)
    finals: dict[str, Final] = field(default_factory=dict)
    seconds: float | None = None  # of the last run; None until it is finished

    @property
    def finished(self) -> bool:
        return self.seconds is not None

    @property
    def commit(self) -> str:
        """That it was begun with, in short."""
        return (self.header["commit"] or "unknown")[:12]

    def curve(self, device: str) -> list[Point]:
        return [point for point in self.points if point.device == device]


def result_file(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.name}{SUFFIX}"


def known_result(folder: Path, cell: Cell) -> Result[Cell] | None:
    """What a folder holds of a cell; that of another configuration is refused."""
    path = result_file(folder, cell)
    known = read_result(path)
    if known is not None and known.cell != cell:
        raise ExperimentError(
            f"{path} holds results of another configuration; give another --out, or the same "
            "options as before."
        )
    return known


def read_results(folder: Path) -> list[Result[Cell]]:
    """Every finished cell of a study, by name."""
    files = sorted((folder / "cells").glob(f"*{SUFFIX}"))
    if not files:
        raise ExperimentError(
            f"{folder} holds no results; `toolkit experiment` with --out {folder} makes some."
        )
    found = [read_result(file) for file in files]
    return [result for result in found if result is not None and result.finished]


def of_kind(results: Iterable[Result[Cell]], kind: type[K]) -> list[Result[K]]:
    """Those of cells of one kind."""
    return [result for result in results if isinstance(result.cell, kind)]  # type: ignore[misc]


def read_result(file: Path) -> Result[Cell] | None:
    """What a file holds; None if it does not exist or was killed before its first line."""
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
        result = Result(_cell(header["cell"]), header)
        for line in lines[1:]:
            _add(result, dict(line))
    except (KeyError, TypeError):
        raise ExperimentError(f"{file} holds no results of a cell.") from None
    return result


def _cell(found: dict[str, Any]) -> Cell:
    plays = found["settings"]["task"] in rl_cell.TASKS
    return RlCell.from_json(found) if plays else SupervisedCell.from_json(found)


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
    """The whole lines; the last one may have been cut off."""
    for line in text.split("\n")[:-1]:
        yield json.loads(line)


class ResultWriter:
    """Adds to the file of one cell; what it says is durable when a method returns.

    The devices of a cell are threads, and all of them write here.
    """

    def __init__(self, folder: Path, cell: Cell, **about: Any) -> None:
        self._lock = threading.Lock()
        path = result_file(folder, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = read_result(path) if cell.goes_on else None
        self._file = path.open("r+b" if cell.goes_on and path.exists() else "w+b")
        self._file.truncate(self._file.read().rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)
        if known is None:
            sync_path(path.parent)
            killed = {"when_killed": _AFTER_A_KILL[cell.goes_on]}
            self._write("header", format=FORMAT, cell=cell.to_json(), **killed, **about)
        else:
            self._write("resumed", **about)
        self.known = known or Result(cell, {})
        self._seen = {(point.device, point.round) for point in self.known.points}

    def point(self, point: Point) -> None:
        """A round that is trained again after a kill gives the same point; it is written once."""
        with self._lock:
            if (point.device, point.round) not in self._seen:
                self._seen.add((point.device, point.round))
                self._write("point", device=point.device, round=point.round, **point.scores)

    def final(self, final: Final) -> None:
        if final.device not in self.known.finals:
            self._write("final", device=final.device, **final.scores)

    def finish(self, seconds: float) -> None:
        self._write("finished", seconds=round(seconds, 3))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, kind: str, **fields: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        sync_file(self._file)
