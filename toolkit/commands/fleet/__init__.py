"""`toolkit fleet`: a running fleet on the terminal."""

from __future__ import annotations

import typer

from toolkit.commands.fleet import looking, running, steering

fleet = typer.Typer(no_args_is_help=True, help="See and steer a running fleet.")
fleet.command(epilog=looking.EXAMPLES)(looking.ls)
fleet.command()(looking.show)
fleet.command()(looking.watch)
fleet.command(epilog=steering.EXAMPLES)(steering.pause)
fleet.command()(steering.resume)
fleet.command()(steering.remove)
fleet.command()(running.stop)
fleet.command(epilog=running.START_EXAMPLES)(running.start)
