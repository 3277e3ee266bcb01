"""`toolkit home-assistant`: a fleet in Home Assistant."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.commands.fleet.steering import SigningKey, signing_of
from toolkit.commands.link import FleetLink, to_a_fleet

EXAMPLES = "Example:\n\ntoolkit home-assistant --fleet greenhouse --broker mqtt://127.0.0.1:1883"


@to_a_fleet
def home_assistant(
    link: FleetLink,
    prefix: Annotated[
        str, typer.Option(help="Where Home Assistant listens for discovery.")
    ] = "homeassistant",
    switch: Annotated[bool, typer.Option(help="Have a switch that pauses a device.")] = True,
    signing_key: SigningKey = None,
) -> None:
    """Show a fleet in Home Assistant, until Ctrl-C: each device with its score, round and memory.

    Home Assistant must use the fleet's broker. In a provisioned fleet, give the operator's
    credentials.
    """
    from broker.protocol.topics import Topics
    from toolkit.home_assistant.bridge import Bridge, bridge_channel, run_bridge

    topics = Topics(link.fleet)
    bridge = Bridge(topics, signing=signing_of(signing_key), prefix=prefix, switch=switch)
    with bridge_channel(link.fleet, link.link) as channel:
        typer.echo(f"the devices of {link.fleet} are announced below {prefix}/device/")
        for _ in run_bridge(bridge, channel, topics):
            pass
