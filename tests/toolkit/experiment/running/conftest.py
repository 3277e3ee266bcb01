"""What the tests of supervised cells and of cells of players have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.experiment.cell import Cell
from toolkit.experiment.running.results import Result
from toolkit.experiment.running.run_cell import run_cell
from toolkit.experiment.scores import Point

Numbers = Callable[[Result[Cell]], dict[str, Any]]
RunAndKill = Callable[[Cell, Path, int], Result[Cell] | None]


class Killed(BaseException):
    """No code catches it, and only threads are ended after it, as in a process that is killed."""


@pytest.fixture(scope="session")
def numbers() -> Numbers:
    """Returns everything of a result that must not depend on kills, brokers or threads."""

    def numbers(result: Result[Cell]) -> dict[str, Any]:
        points = sorted(result.points, key=lambda point: (point.device, point.round))
        return {"points": points, "finals": result.finals}

    return numbers


@pytest.fixture
def run_and_kill() -> RunAndKill:
    """Runs a cell and kills it when it reports a point after the given number of points.

    Returns its result if it ended before, or None if it was killed.
    """

    def run(cell: Cell, out: Path, points: int) -> Result[Cell] | None:
        left = points

        def count(point: Point) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        try:
            return run_cell(cell, out, None, on_point=count)
        except Killed:
            return None

    return run
