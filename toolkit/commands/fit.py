"""`toolkit fit`: the widest branch that fits a profile."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from profiles import load_profile
from toolkit.commands.options import AsJson, ProfileName
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Example, with this in my_branch.py:\n\n"
    "def branch(width):\n\n"
    "\u00a0   stem = layers.Conv2D(8, 3, activation='relu', name='stem')\n\n"
    "\u00a0   rest = (layers.Flatten(), layers.Dense(width), layers.Dense(10))\n\n"
    "\u00a0   model = keras.Sequential((keras.Input((28, 28, 1)), stem, *rest))\n\n"
    "\u00a0   return model, ('stem',)\n\n"
    "toolkit fit --profile weak --model my_branch.py:branch --max-step-ms 20"
)


def fit(
    profile: ProfileName,
    model: Annotated[str, typer.Option(help="Your function of a width: path/to/file.py:function.")],
    min_width: Annotated[int, typer.Option(help="Smallest width that is useful.", min=1)] = 1,
    max_width: Annotated[int, typer.Option(help="Largest width that is tried.", min=1)] = 512,
    max_step_ms: Annotated[
        float | None, typer.Option(help="Longest training step, as measured here.", min=0.001)
    ] = None,
    max_operations: Annotated[
        int | None, typer.Option(help="Most operations of one inference.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the widest branch whose measured memory, operations and step time fit a profile.

    Wider branches are assumed to need more; the result is measured: it fits, the next does not.
    """
    chosen = load_profile(profile)
    with quiet_terminal() as console, console.status("starting TensorFlow") as status:
        from toolkit.branch.user_model import load_function_of_width
        from toolkit.export.fit import fit as find_widest

        found = find_widest(
            load_function_of_width(model),
            chosen,
            min_width=min_width,
            max_width=max_width,
            max_operations=max_operations,
            max_step_seconds=max_step_ms and max_step_ms / 1e3,
            progress=status.update,
        )
    if as_json:
        typer.echo(json.dumps(found.report(profile, model), indent=2))
    else:
        Console().print(found.table())
        typer.echo(found.command(profile, model))
