"""The progress of a study: bars with the remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from toolkit.experiment.cell import Cell
from toolkit.experiment.running.results import known_result


class Observer(Protocol):
    """Is notified about the progress of cells."""

    def began(self, cell: Cell, round: int) -> None:
        """A cell has been given to a worker; `round` rounds are trained already."""

    def reached(self, cell: Cell, round: int) -> None:
        """A device of a running cell has trained `round` rounds."""

    def ended(self, cell: Cell) -> None:
        """A cell is finished, or has failed."""


@contextlib.contextmanager
def show_progress(console: Console, cells: Sequence[Cell], out: Path) -> Iterator[Observer]:
    """Yields an observer that shows the progress of `cells`, which are still to be run."""
    if not console.is_terminal:
        yield _Lines(console, len(cells))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=300) as bars:
        yield _Bars(bars, cells, out)


def rounds_done(cell: Cell, out: Path) -> int:
    """Returns the number of rounds from which the cell will continue."""
    known = known_result(out, cell) if cell.resumes else None
    return max((point.round for point in known.points), default=0) if known else 0


class _Bars:
    """A bar for the whole study and one for each running cell; their unit is the round."""

    def __init__(self, bars: Progress, cells: Sequence[Cell], out: Path) -> None:
        self._bars = bars
        self._running: dict[Cell, TaskID] = {}
        self._rounds = {cell: rounds_done(cell, out) for cell in cells}
        self._whole = bars.add_task(
            "[bold]all rounds",
            total=sum(cell.options.rounds for cell in cells),
            completed=sum(self._rounds.values()),
        )

    def began(self, cell: Cell, round: int) -> None:
        total = cell.options.rounds
        self._running[cell] = self._bars.add_task(cell.name, total=total, completed=round)

    def reached(self, cell: Cell, round: int) -> None:
        self._rounds[cell] = max(self._rounds[cell], round)
        self._bars.update(self._running[cell], completed=self._rounds[cell])
        self._bars.update(self._whole, completed=sum(self._rounds.values()))

    def ended(self, cell: Cell) -> None:
        self._rounds[cell] = cell.options.rounds
        self._bars.update(self._whole, completed=sum(self._rounds.values()))
        if cell in self._running:  # a Ray cluster does not report which cells are running
            self._bars.remove_task(self._running.pop(cell))


class _Lines:
    """A line when a cell ends, with an estimate of the remaining time."""

    def __init__(self, console: Console, cells: int) -> None:
        self._console = console
        self._cells = cells
        self._ended = 0
        self._begin = time.monotonic()

    def began(self, cell: Cell, round: int) -> None:
        """Prints nothing."""

    def reached(self, cell: Cell, round: int) -> None:
        """Prints nothing."""

    def ended(self, cell: Cell) -> None:
        self._ended += 1
        taken = time.monotonic() - self._begin
        left = taken / self._ended * (self._cells - self._ended)
        times = f"{taken:.0f} s taken, about {left:.0f} s left"
        self._console.print(
            f"{self._ended}/{self._cells} {cell.name}; {times}",
            highlight=False,
            soft_wrap=True,
        )
