"""`toolkit provision`: all that a fleet needs to trust its broker, and the broker its devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from broker.protocol.topics import OBSERVER, OPERATOR
from profiles import load_profile
from toolkit.commands.options import AllowReadableKeys, FleetName

EXAMPLES = (
    "Examples:\n\n"
    "toolkit provision --fleet greenhouse --device pi-1 --device pi-2 --host broker.local\n\n"
    "toolkit provision --fleet greenhouse --device pi-3   (adds one; the others stay)\n\n"
    "toolkit provision --fleet greenhouse --remove pi-2"
)


def provision(
    fleet: FleetName,
    device: Annotated[
        list[str] | None, typer.Option(help="A device to let in; may be repeated.")
    ] = None,
    observer: Annotated[
        bool, typer.Option("--observer", help="Add the user observer, who may look.")
    ] = False,
    operator: Annotated[
        bool, typer.Option("--operator", help="Add the user operator, who may command devices.")
    ] = False,
    rotate: Annotated[
        list[str] | None, typer.Option(help="A device that gets a new password and certificate.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A device to shut out.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The fleet's folder.", show_default="fleets/<fleet>")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address of the broker, for its certificate; may be repeated.",
            show_default="localhost and 127.0.0.1",
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Of the broker.", show_default="8883")] = None,
    days: Annotated[int, typer.Option(help="How long new certificates are good.", min=1)] = 825,
    require_certificate: Annotated[
        bool | None,
        typer.Option(help="Whether devices must show certificates as well as passwords."),
    ] = None,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic",
            help="Users are kept by mosquitto's dynamic security plugin: changes need no reload.",
        ),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(help="Of the devices: what their units allow.", show_default="weak"),
    ] = None,
    allow_readable_keys: AllowReadableKeys = False,
) -> None:
    """Make certificates, passwords, access rules and mosquitto's configuration for a fleet.

    A second run adds devices and changes nothing for the others.
    """
    from toolkit.provisioning import fleet as provisioning
    from toolkit.provisioning.dynamic_security import FILE
    from toolkit.provisioning.enrolment import enrolling

    folder = out or Path("fleets") / fleet
    for name in remove or []:
        known = provisioning.known_fleet(folder, name)
        if known.dynamic:  # first: one that the broker lets in must stay known here
            with enrolling(folder, fleet, known.url) as broker:
                broker.shut_out(name)
        provisioning.remove(folder, name)
        when = "" if known.dynamic else " once the broker has read its password file again"
        typer.echo(f"{name} is shut out{when}")
    for name in rotate or []:
        provisioning.rotate(folder, name, days=days, allow_readable_keys=allow_readable_keys)
        known = provisioning.known_fleet(folder, name)
        if known.dynamic:
            with enrolling(folder, fleet, known.url) as broker:
                broker.let_in(name, provisioning.credentials_of(folder, name))
        typer.echo(f"{name} has new credentials in {folder}")
    if (remove or rotate) and not (device or observer or operator):
        return
    runs = (folder / "broker" / FILE).exists()  # then users are added at the broker itself
    made = provisioning.provision(
        fleet,
        device or [],
        folder,
        host_names=host or [],
        days=days,
        port=port,
        require_certificate=require_certificate,
        dynamic=dynamic,
        profile=load_profile(profile) if profile else None,
        roles=[name for name, on in ((OBSERVER, observer), (OPERATOR, operator)) if on],
        allow_readable_keys=allow_readable_keys,
    )
    if runs:
        with enrolling(folder, fleet, made.fleet.url) as broker:
            lacking = {*made.added, *made.kept} - broker.users()
            for user in (*made.added, *made.kept):
                if user in lacking:
                    broker.let_in(user, made.credentials(user))
    typer.echo(f"{folder}: {_count(made.added, 'added')}, {_count(made.kept, 'as before')}")
    typer.echo(f"  {made.broker} goes to the broker: `mosquitto -c mosquitto.conf` in that folder")
    for user in made.added:
        goes = f"  {made.credentials(user)} goes to {user}"
        typer.echo(goes if user in (OBSERVER, OPERATOR) else f"{goes}; run.sh in it starts it")
    if made.kept and made.server_renewed:
        typer.echo(
            f"  the broker has a new certificate, for {', '.join(made.fleet.host_names)}: replace "
            "its files, restart it, replace every run.sh, and pack anew"
        )
    elif made.kept and made.added:
        typer.echo(f"  {folder / 'aggregator' / 'members'} goes to the aggregator again")
        if runs:
            typer.echo("  the broker lets them in from now on")
        else:
            typer.echo("  send SIGHUP to a mosquitto that runs already, so that it lets them in")


def _count(users: Sequence[str], what: str) -> str:
    return f"{', '.join(users) or 'nobody'} {what}"
