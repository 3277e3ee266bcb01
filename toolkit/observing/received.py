"""What a message changes in the status of a fleet: pure, one function for each topic.

Nothing that arrives is believed to be well formed; what is no message is counted and changes
nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from broker.errors import NameRefused, WireError
from broker.metrics import PREFIX
from broker.protocol.messages import (
    SMALL,
    AggregatorState,
    DeviceState,
    FleetReport,
    Rollout,
    from_bytes,
)
from broker.protocol.topics import Topics, check_name
from profiles.text import printable
from toolkit.observing.status import LARGEST_NUMBER, DeviceStatus, FleetStatus, RoundStatus

MOST_DEVICES = 10_000
MOST_METRICS = 200  # of one device
LONGEST_TEXT = 200  # characters that a device says about itself
_REFUSED = re.compile(r'refused\{reason="([a-z-]{1,40})"\}')
_ABOUT = ("profile", "branch", "runtime", "pack")


def received(
    fleet: FleetStatus, topic: str, payload: bytes, *, now_ms: int, retained: bool = False
) -> FleetStatus:
    """Returns the status after a message; a retained one does not say that its sender lives."""
    topics = Topics(fleet.fleet)
    seen = 0 if retained else now_ms
    try:
        if topic == topics.aggregator_state:
            return _aggregator(fleet, payload, seen)
        if topic == topics.aggregator_metrics:
            return _counters(fleet, payload)
        if topic == topics.report:
            return _report(fleet, payload)
        match topics.sender(topic):
            case (device, "state"):
                return _state(fleet, device, payload, seen)
            case (device, "metrics"):
                return _metrics(fleet, device, payload, seen)
            case (device, "rollout"):
                return _rollout(fleet, device, payload)
    except (WireError, NameRefused, ValueError):
        return replace(fleet, unreadable=fleet.unreadable + 1)
    return fleet


def read_metrics(payload: bytes, prefix: str = PREFIX) -> dict[str, float]:
    """Returns the numbers by name, without their prefix; raises ValueError if they are none.

    Those that are not finite are left out.
    """
    if len(payload) > SMALL:
        raise ValueError("too large to be metrics.")
    found = {}
    for line in payload.decode().splitlines()[:MOST_METRICS]:
        name, _, value = line.rpartition(" ")
        if name.startswith(prefix) and math.isfinite(number := float(value)):
            found[name.removeprefix(prefix)] = number
    return found


def _aggregator(fleet: FleetStatus, payload: bytes, seen: int) -> FleetStatus:
    state = from_bytes(AggregatorState, payload)
    if fleet.aggregator is not None and state.run != fleet.run:  # all that was known is of another
        fleet = replace(fleet, rounds=(), round=0, began_ms=0)
    return replace(
        fleet,
        aggregator=state,
        aggregator_seen_ms=seen or fleet.aggregator_seen_ms,
        round=max(fleet.round, state.round),
    )


def _counters(fleet: FleetStatus, payload: bytes) -> FleetStatus:
    found = read_metrics(payload)
    refused = {
        m[1]: int(v)
        for name, v in found.items()
        if (m := _REFUSED.fullmatch(name)) and 0 <= v <= LARGEST_NUMBER
    }
    counters = {name: value for name, value in found.items() if "{" not in name}
    return replace(fleet, counters=counters, refused=refused)


def _state(fleet: FleetStatus, name: str, payload: bytes, seen: int) -> FleetStatus:
    if not payload:  # the retained state was cleared: the device was removed
        return replace(fleet, devices={n: d for n, d in fleet.devices.items() if n != name})
    state = from_bytes(DeviceState, payload)

    def change(device: DeviceStatus) -> DeviceStatus:
        waiting = printable(state.waiting[:LONGEST_TEXT])
        same = device.online == state.online and bool(device.waiting) == bool(waiting)
        device = replace(
            device,
            online=state.online,
            waiting=waiting if state.online else "",
            since_ms=device.since_ms if same else seen,
            seen_ms=seen or device.seen_ms,
        )
        if not state.online:  # a will describes nothing: what was known stays
            return device
        shares = {t.name: t.shape for t in state.slice().tensors}
        return replace(device, about=_texts(state.about), shares=shares)

    return _changed(fleet, name, change)


def _metrics(fleet: FleetStatus, name: str, payload: bytes, seen: int) -> FleetStatus:
    if not payload:  # cleared, after the device was removed: that makes no new one
        return fleet
    found = read_metrics(payload, f"{PREFIX}device_")
    return _changed(fleet, name, lambda d: replace(d, metrics=found, seen_ms=seen or d.seen_ms))


def _rollout(fleet: FleetStatus, name: str, payload: bytes) -> FleetStatus:
    if not payload:
        return fleet
    said = from_bytes(Rollout, payload)
    text = f"version {said.version} {said.stage}" + (f": {said.text}" if said.text else "")
    return _changed(fleet, name, lambda d: replace(d, rollout=printable(text[:LONGEST_TEXT])))


def _report(fleet: FleetStatus, payload: bytes) -> FleetStatus:
    report = from_bytes(FleetReport, payload)
    if fleet.run and report.run != fleet.run:  # retained by an aggregator before this one
        return fleet
    devices = dict(fleet.devices)
    for name, entry in report.devices.items():
        check_name("device", name)
        if name in devices or len(devices) < MOST_DEVICES:
            devices[name] = _reported(devices.get(name) or DeviceStatus(name=name), entry)
    merges = {int(number): _object(merged) for number, merged in report.rounds.items()}
    if not all(0 <= number <= LARGEST_NUMBER for number in merges):
        raise ValueError("a round in the report has no number.")
    return replace(
        fleet,
        devices=devices,
        round=max(fleet.round, report.round),
        began_ms=report.began_ms,
        deadline_ms=report.deadline_ms,
        quorum=report.quorum,
        last_round=report.last_round,
        rounds=tuple(_round(number, merged) for number, merged in sorted(merges.items())),
    )


def _reported(device: DeviceStatus, entry: Any) -> DeviceStatus:
    entry = _object(entry)
    refused = _object(entry.get("refused", {}))
    return replace(
        device,
        seen_ms=max(device.seen_ms, _number(entry, "seen")),
        online=bool(entry.get("there")) if device.online is None else device.online,
        round=_number(entry, "round", least=-1),
        behind=_number(entry, "behind"),
        accepted=_number(entry, "accepted"),
        late=_number(entry, "late"),
        refused={str(reason)[:40]: _number(refused, reason) for reason in refused},
        update_bytes=_number(entry, "bytes"),
        samples=_number(entry, "samples"),
    )


def _round(number: int, entry: Mapping[str, Any]) -> RoundStatus:
    late = entry.get("late", [])
    if not isinstance(late, list):
        raise ValueError("the devices that were late are not a list.")
    return RoundStatus(
        number=number,
        began_ms=_number(entry, "began"),
        closed_ms=_number(entry, "closed"),
        devices=_number(entry, "devices"),
        late=tuple(check_name("device", str(name)) for name in late),
    )


def _changed(
    fleet: FleetStatus, name: str, change: Callable[[DeviceStatus], DeviceStatus]
) -> FleetStatus:
    check_name("device", name)
    if name not in fleet.devices and len(fleet.devices) >= MOST_DEVICES:
        return fleet
    device = fleet.devices.get(name) or DeviceStatus(name=name)
    return replace(fleet, devices={**fleet.devices, name: change(device)})


def _texts(about: Mapping[str, Any]) -> dict[str, str]:
    found = ((key, about.get(key)) for key in _ABOUT)
    return {k: printable(v[:LONGEST_TEXT]) for k, v in found if isinstance(v, str)}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a part of the report is not an object.")
    return value


def _number(entry: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    value = entry.get(key, least)
    if type(value) is not int or not least <= value <= LARGEST_NUMBER:
        raise ValueError(f"{key[:40]} in the report is not a number.")
    return value
