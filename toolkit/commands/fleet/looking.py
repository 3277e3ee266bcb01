"""`toolkit fleet ls`, `show` and `watch`: what the broker retains of a fleet."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from toolkit.commands.link import FleetLink, to_a_fleet
from toolkit.commands.options import AsJson
from toolkit.errors import ObserverError
from toolkit.observing import words
from toolkit.observing.history import History
from toolkit.observing.observer import Observer, observing
from toolkit.observing.plain import plain_device, plain_fleet
from toolkit.observing.status import Activity, DeviceStatus, FleetStatus

PATIENCE = 6.0  # seconds for the broker to answer
REFRESH_SECONDS = 0.5
EXAMPLES = (
    "Examples:\n\n"
    "toolkit fleet ls --fleet greenhouse --broker mqtt://127.0.0.1:1883\n\n"
    "toolkit fleet ls --fleet greenhouse --json"
)
COLOURS = {
    Activity.TRAINING: "green",
    Activity.WAITING: "blue",
    Activity.PAUSED: "yellow",
    Activity.OFFLINE: "red",
    Activity.UNKNOWN: "dim",
}
DeviceId = Annotated[str, typer.Argument(metavar="ID", help="Name of the device.")]


@to_a_fleet
def ls(link: FleetLink, as_json: AsJson = False) -> None:
    """List the devices of a fleet, and what each is doing."""
    with observing(link.fleet, link.link, History()) as observer:
        observer.settle(PATIENCE)
        _check_known(observer.status)
        if as_json:
            typer.echo(json.dumps(plain_fleet(observer.status), indent=2))
        else:
            Console().print(fleet_picture(observer))


@to_a_fleet
def show(link: FleetLink, device: DeviceId, as_json: AsJson = False) -> None:
    """Show all that is known of one device."""
    with observing(link.fleet, link.link, History()) as observer:
        observer.settle(PATIENCE)
        found = known_device(observer.status, device)
        if as_json:
            typer.echo(json.dumps(plain_device(observer.status, found), indent=2))
        else:
            Console().print(device_picture(observer.status, found))


@to_a_fleet
def watch(link: FleetLink, as_json: AsJson = False) -> None:
    """Show the fleet until Ctrl-C; with --json one line for each change of it."""
    with observing(link.fleet, link.link, History()) as observer:
        observer.settle(PATIENCE)
        if as_json:
            _print_lines(observer)
        with Live(fleet_picture(observer), auto_refresh=False) as live:
            while True:
                until = time.monotonic() + REFRESH_SECONDS
                while time.monotonic() < until:
                    observer.look(0.1)
                live.update(fleet_picture(observer), refresh=True)


def _print_lines(observer: Observer) -> None:
    shown = None
    while True:
        if observer.status is not shown:
            shown = observer.status
            typer.echo(json.dumps(plain_fleet(shown)))
        observer.look(1.0)


def fleet_picture(observer: Observer) -> RenderableType:
    """Returns a line about the fleet, and a table of its devices."""
    fleet, now = observer.status, int(1000 * time.time())
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("device", "state", "profile"):
        table.add_column(name, overflow="fold")
    for name in ("round", "score", "", "memory", "late", "last seen"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, device in sorted(fleet.devices.items()):
        found = fleet.doing(name)
        values = [value for _, value in observer.curve(device).points]
        table.add_row(
            name,
            f"[{COLOURS[found.activity]}]{words.SYMBOLS[found.activity]} "
            f"{words.doing(found, now)}[/]",
            device.about.get("profile", words.UNKNOWN),
            str(device.trained_round) if device.trained_round >= 0 else words.UNKNOWN,
            f"{device.measure} {words.score(device)}".strip(),
            words.spark(values),
            words.memory(device),
            str(device.late),
            words.ago(device.seen_ms, now),
        )
    return Group(fleet_line(fleet), "", table)


def fleet_line(fleet: FleetStatus) -> str:
    """Returns the fleet at a glance."""
    state = fleet.aggregator
    how = f", {state.mode}, {state.merge}" if state else ""
    total = f" of {fleet.last_round}" if fleet.last_round else ""
    counts = ", ".join(
        f"{number} {activity}" for activity in Activity if (number := fleet.count(activity))
    )
    return (
        f"[bold]{fleet.fleet}[/]  aggregator {fleet.aggregator_status}{how}  "
        f"round {fleet.round}{total}  {counts or 'no devices'}"
    )


def device_picture(fleet: FleetStatus, device: DeviceStatus) -> Table:
    """Returns what is known of one device, a line each."""
    now = int(1000 * time.time())
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    shared = sum(device.shared_bytes.values())
    lines = {
        "device": device.name,
        "state": words.doing(fleet.doing(device.name), now),
        **device.about,
        **({"rollout": device.rollout} if device.rollout else {}),
        "last seen": words.ago(device.seen_ms, now),
        device.measure or "score": words.score(device),
        "memory": words.memory(device),
        "temperature": words.temperature(device),
        "updates": f"{device.accepted} accepted, {device.late} late",
        "last update": words.size(device.update_bytes),
        "refused": ", ".join(f"{n} {reason}" for reason, n in device.refused.items()) or "none",
        "shares": f"{len(device.shares)} tensors, {words.size(shared)} as float32",
        **{f"  {name}": words.size(n) for name, n in device.shared_bytes.items()},
    }
    for name, value in lines.items():
        table.add_row(name, value)
    return table


def known_device(fleet: FleetStatus, name: str) -> DeviceStatus:
    """Returns the device; raises `ObserverError` if nothing is known of it."""
    _check_known(fleet)
    if name not in fleet.devices:
        raise ObserverError(f"the fleet {fleet.fleet!r} has no device {name[:80]!r}.")
    return fleet.devices[name]


def _check_known(fleet: FleetStatus) -> None:
    if fleet.aggregator is None and not fleet.devices:
        raise ObserverError(
            f"the broker knows no fleet {fleet.fleet!r}: no aggregator and no device of it has "
            "ever spoken there, or this user may not read their topics."
        )
