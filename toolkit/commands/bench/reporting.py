"""What every benchmark has: its options, a line of progress, tables, and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from toolkit.terminal import quiet_terminal

bench = typer.Typer(help="Benchmarks; each prints a table and writes JSON.", no_args_is_help=True)
FOLDER = Path("build/bench")
Progress = Callable[[str], None]

Out = Annotated[Path, typer.Option(help="JSON file with every number.")]
Names = Annotated[
    list[str] | None,
    typer.Option(help="Only zoo branches whose name contains this; may be repeated."),
]
Processes = Annotated[int, typer.Option(help="Number of processes per contestant, in turn.", min=1)]
Threads = Annotated[int, typer.Option(help="CPU threads for every contestant.", min=1)]
MiniBatches = Annotated[int, typer.Option(help="Number of mini-batches in a round.", min=1)]


@contextmanager
def at_work(out: Path) -> Iterator[Progress]:
    """A quiet terminal with a line of progress, and a place for the numbers."""
    with quiet_terminal() as console, console.status("preparing") as status:
        from toolkit.writing import make_folder

        make_folder(out.parent)
        yield status.update


def show(report: dict[str, Any], tables: Callable[[dict[str, Any]], Any], out: Path) -> None:
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for part in tables(report):
        Console().print(part)
    typer.echo(f"every number is in {out}")
