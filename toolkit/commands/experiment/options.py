"""Options that all studies have, and how a study is run from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import SETTINGS, Cell
from toolkit.experiment.running.study import run_study

T = TypeVar("T")

Modes = Annotated[str, typer.Option(help="Any of these, with commas.")]
LearningRate = Annotated[float | None, typer.Option(show_default="the branch's own")]
Mqtt = Annotated[bool, typer.Option("--mqtt", help="Over a real broker instead of one in memory.")]
Jobs = Annotated[int | None, typer.Option(help="Cells at a time.", min=1, show_default="cores")]
Ray = Annotated[bool, typer.Option("--ray", help="Run cells on a Ray cluster.")]
FirstSeed = Annotated[int, typer.Option(help="Of the seeds.", min=0)]
Out = Annotated[
    Path | None, typer.Option(help="Folder of the results.", show_default="results/<task>")
]
ALL_SETTINGS = ",".join(SETTINGS)


def run_cells(
    cells: Sequence[Cell],
    out: Path | None,
    data: Path | None,
    *,
    mqtt: bool,
    jobs: int | None,
    ray: bool,
) -> None:
    """Runs the study and prints where its results are."""
    folder = out or Path("results") / cells[0].options.task
    run_study(cells, folder, data, link="mqtt" if mqtt else "memory", jobs=jobs, ray=ray)
    are, them = ("cell is", "it") if len(cells) == 1 else ("cells are", "them")
    typer.echo(f"{len(cells)} {are} in {folder}; `toolkit figures {folder}` draws {them}")


def listed(text: str, kind: Callable[[str], T], what: str) -> list[T]:
    """The distinct values of a list that a user writes with commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return [kind(part) for part in dict.fromkeys(parts)]
    except ValueError:
        raise ExperimentError(f"{text!r} does not list {what}s, as 0.05,0.5 does.") from None
