"""How far a study is: bars with the time left on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

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
from toolkit.experiment.running.workers import Watch, rounds_done


@contextlib.contextmanager
def watching(console: Console, cells: Sequence[Cell], out: Path) -> Iterator[Watch]:
    """`cells` are those still to be run."""
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


class _Bars:
    """A bar for the whole study, and one for each cell that is running; they count rounds."""

    def __init__(self, bars: Progress, cells: Sequence[Cell], out: Path) -> None:
        self._bars = bars
        self._running: dict[Cell, TaskID] = {}
        self._rounds = {cell: rounds_done(cell, out) for cell in cells}
        self._whole = bars.add_task(
            "[bold]all rounds",
            total=sum(cell.settings.rounds for cell in cells),
            completed=sum(self._rounds.values()),
        )

    def began(self, cell: Cell, round: int) -> None:
        total = cell.settings.rounds
        self._running[cell] = self._bars.add_task(cell.name, total=total, completed=round)

    def reached(self, cell: Cell, round: int) -> None:
        self._rounds[cell] = max(self._rounds[cell], round)
        self._bars.update(self._running[cell], completed=self._rounds[cell])
        self._bars.update(self._whole, completed=sum(self._rounds.values()))

    def ended(self, cell: Cell) -> None:
        self._rounds[cell] = cell.settings.rounds
        self._bars.update(self._whole, completed=sum(self._rounds.values()))
        if cell in self._running:  # on a cluster nobody knows which are
            self._bars.remove_task(self._running.pop(cell))


class _Lines:
    """A line when a cell ends, with a guess of the time left."""

    def __init__(self, console: Console, cells: int) -> None:
        self._console = console
        self._cells = cells
        self._ended = 0
        self._begin = time.monotonic()

    def began(self, cell: Cell, round: int) -> None:
        """Nothing to say."""

    def reached(self, cell: Cell, round: int) -> None:
        """Nothing to say."""

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
