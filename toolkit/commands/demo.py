"""`toolkit demo`: the study in short."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from toolkit.commands.options import Seeds


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("build/demo"),
    rounds: Annotated[int, typer.Option(help="Number of merges.", min=1)] = 15,
    steps: Annotated[int, typer.Option(help="Number of mini-batches in a round.", min=1)] = 20,
    seeds: Seeds = 5,
    embedded: Annotated[
        bool, typer.Option(help="Use the embedded broker even if mosquitto is installed.")
    ] = False,
    dashboard: Annotated[
        str | None,
        typer.Option(help="Show the first fleet of unequal devices at HOST:PORT.", metavar="PLACE"),
    ] = None,
) -> None:
    """Let a weak and a powerful device learn digits: alone, both alike, and each as it can.

    The weak one holds 5 % of the data. This is `toolkit experiment digits` in short, over a real
    broker and in the device's runtime.
    """
    from toolkit.experiment.demo import run_demo

    table, figure = run_demo(
        out, rounds=rounds, steps=steps, seeds=seeds, embedded=embedded, dashboard=dashboard
    )
    Console().print(table)
    typer.echo(f"the picture is in {figure}")
