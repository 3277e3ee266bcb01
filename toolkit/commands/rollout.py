"""`toolkit rollout`: a new bundle for devices that run, over the broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.fleet.steering import SigningKey, signing_of
from toolkit.commands.link import FleetLink, to_a_fleet

if TYPE_CHECKING:
    from toolkit.rollout.delivery import Delivery

EXAMPLES = (
    "Examples:\n\n"
    "toolkit pack build/weak --fleet greenhouse   (no --device: for all, without credentials)\n\n"
    "toolkit rollout fleets/greenhouse/rollouts/1760000000.pack --fleet greenhouse --to 10%\n\n"
    "toolkit rollout fleets/greenhouse/rollouts/1760000000.pack --fleet greenhouse"
)
WORDS = {
    "wants": "fetches it",
    "ready": "has it, and finishes its round",
    "trying": "tries it",
    "done": "runs it",
    "refused": "refuses it",
    "rolled-back": "went back",
}


@to_a_fleet
def rollout(
    link: FleetLink,
    pack: Annotated[Path, typer.Argument(help="From `toolkit pack` without --device.")],
    to: Annotated[
        str, typer.Option(help="Devices, as pi-1,pi-2; a part of those that run, as 10%; or all.")
    ] = "all",
    within: Annotated[
        int, typer.Option(help="Seconds in which a device has to finish a round.", min=1, max=86400)
    ] = 600,
    wait: Annotated[
        float, typer.Option(help="Seconds that a device may say nothing, trial apart.", min=0.1)
    ] = 900.0,
    signing_key: SigningKey = None,
) -> None:
    """Give devices a new bundle: one, then two, then four …, as long as all are healthy.

    A device fetches the pack, checks its signature, and tries it between two rounds. If it does not
    finish a round with it in time, or ends above its memory cap, it goes back to what it had.
    """
    from toolkit.rollout.offered_pack import read_pack
    from toolkit.rollout.rollout import rolling_out
    from toolkit.rollout.waves import chosen

    offered = read_pack(pack, link.fleet)
    with rolling_out(link.fleet, link.link, signing_of(signing_key)) as rollouts:
        running = rollouts.running()
        devices = chosen(to, sorted(running), offered.version)
        new = [name for name in devices if running[name] != offered.version]
        typer.echo(f"version {offered.version} for {len(new)} of {len(running)} devices")
        rollouts.roll_out(offered, new, within=within, wait=wait, tell=_tell)
    typer.echo(f"{len(devices)} devices run version {offered.version}")


def _tell(delivery: Delivery) -> None:
    why = f": {delivery.text}" if delivery.text else ""
    typer.echo(f"  {delivery.device} {WORDS[delivery.stage]}{why}")
