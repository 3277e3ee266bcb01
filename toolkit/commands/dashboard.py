"""`toolkit dashboard`: a fleet in the browser."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.fleet.steering import SigningKey, signing_of
from toolkit.commands.link import FleetLink, to_a_fleet
from toolkit.observing.operator import Operator, operating

PATIENCE = 20.0  # seconds for a device to answer
PASSWORD = "STEMSHARE_DASHBOARD_PASSWORD"
EXAMPLES = (
    "Examples:\n\n"
    "toolkit dashboard --fleet greenhouse --broker mqtt://127.0.0.1:1883\n\n"
    "toolkit dashboard --fleet greenhouse --history greenhouse.history\n\n"
    "toolkit dashboard --fleet greenhouse --http 0.0.0.0:8765 --password-hash-file hash"
)


def _hash(asked: bool) -> None:
    if asked:
        from toolkit.dashboard.guard import hashed

        typer.echo(hashed(typer.prompt("Password", hide_input=True, confirmation_prompt=True)))
        raise typer.Exit


@to_a_fleet
def dashboard(
    link: FleetLink,
    http: Annotated[str, typer.Option(help="Where the page is.")] = "127.0.0.1:8765",
    history: Annotated[
        Path | None, typer.Option(help="File that keeps curves and rounds over restarts.")
    ] = None,
    password_hash_file: Annotated[
        Path | None,
        typer.Option(help=f"Hash of the page's password (or ${PASSWORD} has the password)."),
    ] = None,
    hash_password: Annotated[
        bool,
        typer.Option(
            "--hash-password",
            callback=_hash,
            is_eager=True,
            help="Ask for a password, print its hash, and stop.",
        ),
    ] = False,
    steer: Annotated[
        bool, typer.Option("--steer", help="Have buttons that pause and resume devices.")
    ] = False,
    signing_key: SigningKey = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy asks for a password already.")
    ] = False,
) -> None:
    """Show a fleet in the browser; it may be stopped and started at will.

    Without --steer it only reads.
    """
    from toolkit.dashboard.guard import hashed, read_hash
    from toolkit.dashboard.server import Place, parse_place, serve
    from toolkit.observing.history import History
    from toolkit.observing.observer import observing

    password = os.environ.get(PASSWORD)
    line = read_hash(password_hash_file) if password_hash_file else None
    place = Place(
        *parse_place(http),
        password_hash=line or (hashed(password) if password else None),
        behind_proxy=behind_proxy,
    )
    place.check()
    with ExitStack() as stack:
        tell = None
        if steer:
            operator = stack.enter_context(
                operating(link.fleet, link.link, signing_of(signing_key))
            )
            tell = partial(_tell, operator)
        observer = stack.enter_context(observing(link.fleet, link.link, History(history)))
        typer.echo(f"the dashboard of {link.fleet} is at http://{place}/")
        serve(observer, place, tell)


def _tell(operator: Operator, device: str, what: str) -> str:
    answer = operator.tell(device, what, patience=PATIENCE)
    return answer.text if answer else "no answer yet; it obeys when it is heard again"
