"""`toolkit fleet pause`, `resume` and `remove`: commands to devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.aggregator.signing import Signing, read_signing_key
from toolkit.commands.fleet.looking import DeviceId
from toolkit.commands.link import FleetLink, to_a_fleet
from toolkit.errors import ObserverError

SigningKey = Annotated[
    Path | None,
    typer.Option(
        help="Signs the command; needed where devices have a key.",
        envvar="STEMSHARE_SIGNING_KEY",
    ),
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.1)]
EXAMPLES = (
    "Examples:\n\n"
    "toolkit fleet pause pi-1 --fleet greenhouse --reason 'the fan is being changed'\n\n"
    "toolkit fleet resume pi-1 --fleet greenhouse"
)


@to_a_fleet
def pause(
    link: FleetLink,
    device: DeviceId,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
    signing_key: SigningKey = None,
    wait: Wait = 30.0,
) -> None:
    """Let a device pause before its next round; no round waits for it meanwhile."""
    _tell(link, device, "pause", signing_key, wait, reason)


@to_a_fleet
def resume(
    link: FleetLink, device: DeviceId, signing_key: SigningKey = None, wait: Wait = 30.0
) -> None:
    """Let a paused device go on."""
    _tell(link, device, "resume", signing_key, wait)


@to_a_fleet
def remove(
    link: FleetLink, device: DeviceId, signing_key: SigningKey = None, wait: Wait = 30.0
) -> None:
    """Let a device leave the fleet for good; what it has learnt stays on it.

    In a provisioned fleet, also shut its user out: toolkit provision --remove ID.
    """
    _tell(link, device, "remove", signing_key, wait)


def _tell(
    link: FleetLink, device: str, what: str, key: Path | None, wait: float, reason: str = ""
) -> None:
    from toolkit.observing.operator import operating

    with operating(link.fleet, link.link, signing_of(key)) as operator:
        answer = operator.tell(device, what, reason=reason, patience=wait)
        if answer is None:
            raise ObserverError(
                f"{device} has not answered within {wait:g} s; the command stays at the broker "
                "until the device obeys, or another one replaces it."
            )
        if not answer.done:
            raise ObserverError(f"{device} refuses: {answer.text}")
        if what == "remove":
            operator.forget(device)
    typer.echo(f"{device} has obeyed: {what}")


def signing_of(key: Path | None) -> Signing | None:
    """Returns the fleet's signing key, if there is one."""
    if key is None:
        return None
    return read_signing_key(key)
