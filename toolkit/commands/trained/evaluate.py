"""`toolkit evaluate`: how good a trained branch is, class by class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from toolkit.commands.options import AsJson, BundleFolder
from toolkit.commands.trained.checkout import DeviceState, FleetState
from toolkit.terminal import quiet_terminal

EXAMPLES = "Example:\n\ntoolkit evaluate build/weak --state state/pi-1 --data arrays.npz"


def evaluate(
    bundle: BundleFolder,
    data: Annotated[
        Path, typer.Option(help="To test with: an .npz file as devices take, or CIFAR-10's folder.")
    ],
    state: DeviceState = None,
    shared: FleetState = None,
    as_json: AsJson = False,
) -> None:
    """Test a branch in the device's runtime, class by class.

    Without --state and --shared it has the weights that it was exported with.
    """
    with quiet_terminal() as console, console.status("computing"):
        from toolkit.trained.evaluation import evaluate as test

        found = test(bundle, state=state, shared=shared, data=data)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
        return
    table = Table("class", "examples", "recall", "precision", "F1")
    for number, score in enumerate(found.classes):
        figures = (score.recall, score.precision, score.f1)
        table.add_row(
            str(number),
            f"{score.examples:,}",
            *("" if figure is None else f"{figure:.1%}" for figure in figures),
        )
    Console().print(table)
    typer.echo(
        f"accuracy {found.accuracy:.2%} of {found.examples:,} examples ({found.runtime}), "
        f"with the weights of {found.weights}"
    )
