"""All that is known of one device, in a dialog of the page."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from nicegui import run, ui

from profiles.errors import StemshareError
from toolkit.observing import words
from toolkit.observing.observer import Observer
from toolkit.observing.status import DeviceStatus, FleetStatus

Steer = Callable[[str, str], str]  # (device, "pause" | "resume") → what came of it


def lines_of(fleet: FleetStatus, device: DeviceStatus, now_ms: int) -> dict[str, str]:
    """Returns what is known of a device, a line each."""
    shared = sum(device.shared_bytes.values())
    refused = ", ".join(f"{n} {reason}" for reason, n in device.refused.items())
    return {
        "State": words.doing(fleet.doing(device.name), now_ms),
        **{key.capitalize(): value for key, value in device.about.items()},
        **({"Rollout": device.rollout} if device.rollout else {}),
        device.measure.capitalize() or "Score": words.score(device),
        "Memory": words.memory(device),
        "Temperature": words.temperature(device),
        "Last seen": words.ago(device.seen_ms, now_ms),
        "Updates": f"{device.accepted} accepted, {device.late} late",
        "Refused": refused or "none",
        "Last update": f"{words.size(device.update_bytes)}, {device.samples} examples",
        "Staleness": f"{device.behind} merges",
        "Leaves the device": f"{len(device.shares)} tensors, {words.size(shared)} as float32",
    }


def show_details(observer: Observer, name: str, steer: Steer | None) -> None:
    """Opens the dialog; with `steer` it has buttons to pause and resume."""
    device = observer.status.devices.get(name)
    if device is None:
        return
    with ui.dialog(value=True) as dialog, ui.card().classes("panel").style("max-width: 480px"):
        with ui.row().classes("w-full items-center justify-between"):
            ui.label(name).classes("text-h6")
            ui.button(icon="close", on_click=dialog.close).props(
                "flat round dense aria-label=close"
            )
        for title, text in lines_of(observer.status, device, int(1000 * time.time())).items():
            with ui.element("div").classes("row-line"):
                ui.label(title).classes("note")
                ui.label(text).style("text-align: right; overflow-wrap: anywhere")
        if steer is not None:
            with ui.row().classes("w-full q-mt-sm"):
                for what, icon in (("pause", "pause"), ("resume", "play_arrow")):
                    button = ui.button(what, icon=icon).props(f"outline no-caps id={what}")
                    button.on_click(partial(_tell, steer, name, what, dialog))
    dialog.on("hide", dialog.delete)


async def _tell(steer: Steer, name: str, what: str, dialog: ui.dialog) -> None:
    """Closes the dialog, and shows the answer when it has come."""
    dialog.close()
    ui.notify(f"{name} is asked to {what}")
    try:
        said = await run.io_bound(steer, name, what)
    except StemshareError as error:
        said = str(error)
    with dialog.client:
        ui.notify(f"{name}: {said}")
