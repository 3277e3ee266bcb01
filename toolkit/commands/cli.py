"""The command `toolkit`: all commands in the order of use, in groups.

Heavy imports wait until a command needs them, so that help is instant.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from textwrap import shorten
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from profiles.errors import FAILED, INTERRUPTED, StemshareError
from profiles.text import printable
from toolkit.commands import (
    bench,
    candidates,
    compare,
    dashboard,
    demo,
    experiment,
    export,
    figures,
    fit,
    fleet,
    home_assistant,
    inspect,
    profiles,
    rollout,
)
from toolkit.commands.provisioning import pack, provision
from toolkit.commands.trained import checkout, evaluate, play
from toolkit.terminal import QUIET

LONGEST_SENTENCE = 600  # characters; the converter's messages can be far longer


class InOrderOfUse(TyperGroup):
    """Lists commands as they are registered; typer would put groups behind all others."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return [name for name in ORDER if name in self.commands]


app = typer.Typer(
    cls=InOrderOfUse,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"stemshare {version('stemshare')}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done; 1 something that a sentence explains; 2 wrong usage; "
    "130 interrupted.\n\nNO_COLOR=1 in the environment turns colours off."
)
def everywhere(
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", envvar=QUIET, help="Show no progress, only results."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Turns Keras branches into bundles that train on the stock TFLite runtimes."""
    if quiet:
        os.environ[QUIET] = "1"


PREPARE, FLEET, TRAINED = "Prepare a branch", "Run a fleet", "After training"
STUDIES, SPEED = "Studies", "Benchmarks"

app.command(rich_help_panel=PREPARE, epilog=profiles.EXAMPLES)(profiles.profiles)
app.command(rich_help_panel=PREPARE, epilog=export.EXAMPLES)(export.export)
app.command(rich_help_panel=PREPARE)(inspect.inspect)
app.command(rich_help_panel=PREPARE, epilog=fit.EXAMPLES)(fit.fit)
app.command(rich_help_panel=PREPARE, epilog=candidates.EXAMPLES)(candidates.candidates)
app.command(rich_help_panel=FLEET, epilog=provision.EXAMPLES)(provision.provision)
app.command(rich_help_panel=FLEET, epilog=pack.EXAMPLES)(pack.pack)
app.command(rich_help_panel=TRAINED, epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command(rich_help_panel=TRAINED, epilog=checkout.EXAMPLES)(checkout.checkout)
app.command(rich_help_panel=FLEET, epilog=dashboard.EXAMPLES)(dashboard.dashboard)
app.command(rich_help_panel=FLEET, epilog=rollout.EXAMPLES)(rollout.rollout)
app.command(rich_help_panel=FLEET, epilog=home_assistant.EXAMPLES)(home_assistant.home_assistant)
app.add_typer(fleet.fleet, name="fleet", rich_help_panel=FLEET)
app.command(rich_help_panel=TRAINED, epilog=play.EXAMPLES)(play.play)
app.command(rich_help_panel=STUDIES)(demo.demo)
app.command(rich_help_panel=STUDIES, epilog=compare.EXAMPLES)(compare.compare)
app.add_typer(experiment.experiment, name="experiment", rich_help_panel=STUDIES)
app.command(rich_help_panel=STUDIES, epilog=figures.EXAMPLES)(figures.figures)
app.add_typer(bench.bench, name="bench", rich_help_panel=SPEED)

ORDER = (
    *("profiles", "export", "inspect", "fit", "candidates"),
    *("provision", "pack", "dashboard", "fleet", "rollout", "home-assistant"),
    *("evaluate", "checkout", "play"),
    *("demo", "compare", "experiment", "figures"),
    "bench",
)


def main() -> None:
    """Runs a command; an error of ours is printed as one sentence, without a traceback."""
    try:
        app()
    except StemshareError as error:
        sentence = escape(printable(shorten(str(error), LONGEST_SENTENCE, placeholder=" …")))
        colour = "red" if error.exit_code == FAILED else "yellow"
        Console(stderr=True).print(
            f"[{colour}]{error.heading}[/]{sentence}", highlight=False, soft_wrap=True
        )
        sys.exit(error.exit_code)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            Console(stderr=True).print("interrupted; nothing was replaced", highlight=False)
        raise


if __name__ == "__main__":
    main()
