"""The status of a fleet as plain JSON, for scripts; pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from toolkit.observing.status import DeviceStatus, FleetStatus


def plain_fleet(fleet: FleetStatus) -> dict[str, Any]:
    """Returns all that is known; times are milliseconds of Unix time, 0 is "not known"."""
    state = fleet.aggregator
    return {
        "fleet": fleet.fleet,
        "status": fleet.aggregator_status,
        "run": fleet.run,
        "mode": state.mode if state else "",
        "merge": state.merge if state else "",
        "round": fleet.round,
        "last_round": fleet.last_round,
        "quorum": fleet.quorum,
        "counters": dict(fleet.counters),
        "refused": dict(fleet.refused),
        "devices": [plain_device(fleet, device) for _, device in sorted(fleet.devices.items())],
        "rounds": [asdict(merged) for merged in fleet.rounds],
    }


def plain_device(fleet: FleetStatus, device: DeviceStatus) -> dict[str, Any]:
    doing = fleet.doing(device.name)
    return {
        **asdict(device),
        "activity": str(doing.activity),
        "why": doing.why,
        "measure": device.measure,
        "score": device.score,
        "shared_bytes": dict(device.shared_bytes),
    }
