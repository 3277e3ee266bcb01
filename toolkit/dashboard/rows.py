"""What the page says about the fleet and each device, as texts and numbers; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from toolkit.dashboard import colours
from toolkit.dashboard.charts import spark_path
from toolkit.observing import words
from toolkit.observing.curves import Curve
from toolkit.observing.status import Activity, DeviceStatus, FleetStatus

SPARK_POINTS = 40
COLUMNS = (
    ("name", "Device", "left"),
    ("state", "State", "left"),
    ("round", "Round", "right"),
    ("score", "Score", "right"),
    ("memory", "Memory", "left"),
    ("sent", "Sent", "right"),
    ("late", "Late", "right"),
    ("celsius", "Temp.", "right"),
    ("seen", "Last seen", "right"),
)


def columns() -> list[dict[str, Any]]:
    return [
        {"name": name, "label": label, "field": name, "align": align, "sortable": True}
        for name, label, align in COLUMNS
    ]


def device_row(
    fleet: FleetStatus, device: DeviceStatus, curve: Curve, now_ms: int
) -> dict[str, Any]:
    """Returns one row of the table of devices."""
    doing = fleet.doing(device.name)
    used, cap = (device.metrics.get(f"memory_{what}bytes", 0.0) for what in ("", "cap_"))
    values = [value for _, value in curve.points[-SPARK_POINTS:]]
    return {
        "name": device.name,
        "about": " · ".join(filter(None, (device.about.get(k) for k in ("profile", "branch")))),
        "state": str(doing.activity),
        "symbol": words.SYMBOLS[doing.activity],
        "colour": colours.ACTIVITIES[doing.activity],
        "why": _why(doing.activity, doing.why, doing.since_ms, now_ms),
        "round": max(device.trained_round, device.round, 0),
        "score": words.score(device),
        "measure": device.measure,
        "spark": spark_path(values),
        "memory": words.memory(device),
        "filled": round(min(1.0, used / cap), 3) if cap else 0.0,
        "full": colours.VERMILION if cap and used > 0.9 * cap else colours.BLUE,
        "sent": words.size(device.metrics.get("sent_bytes") or device.update_bytes or None),
        "late": device.late,
        "celsius": words.temperature(device),
        "seen": words.ago(device.seen_ms, now_ms),
    }


def _why(activity: Activity, why: str, since_ms: int, now_ms: int) -> str:
    if activity is Activity.OFFLINE and since_ms:
        return f"last seen {words.ago(since_ms, now_ms)}"
    if activity is Activity.PAUSED and since_ms:
        return f"{why}, for {words.duration((now_ms - since_ms) // 1000)}"
    return why


@dataclass(frozen=True)
class Glance:
    """The fleet in five texts and some numbers."""

    status: str
    status_colour: str
    how: str
    round: str
    part: float  # of all rounds that are done, or 0
    round_note: str
    activities: Mapping[Activity, int]
    scores: Sequence[tuple[str, str]]  # of each group of devices: its name, the mean of its scores
    traffic: str
    traffic_note: str
    refused: int
    refused_note: str


def glance(fleet: FleetStatus, now_ms: int) -> Glance:
    """Returns what is at the top of the page."""
    state = fleet.aggregator
    total = f" / {fleet.last_round}" if fleet.last_round else ""
    status = fleet.aggregator_status
    counters = fleet.counters
    accepted, devices = (int(counters.get(k, 0)) for k in ("updates_accepted", "devices_present"))
    received, sent = (counters.get(f"{way}_bytes") for way in ("received", "sent"))
    last = fleet.rounds[-1] if fleet.rounds else None
    return Glance(
        status=status,
        status_colour={"online": colours.GREEN, "finished": colours.BLUE}.get(
            status, colours.VERMILION
        ),
        how=f"{state.mode} · {state.merge} · {state.exchange}" if state else "",
        round=f"{fleet.round}{total}",
        part=min(1.0, fleet.round / fleet.last_round) if fleet.last_round else 0.0,
        round_note=f"last one took {words.duration(last.seconds)}" if last else "",
        activities={a: n for a in Activity if (n := fleet.count(a))},
        scores=_scores(fleet),
        traffic=f"{words.size(received)} in",
        traffic_note=f"{words.size(sent)} out · {accepted} updates · {devices} devices present",
        refused=sum(fleet.refused.values()),
        refused_note=", ".join(f"{n} {reason}" for reason, n in _most(fleet.refused)) or "none",
    )


def _most(refused: Mapping[str, int]) -> list[tuple[str, int]]:
    return Counter(refused).most_common(3)


def _scores(fleet: FleetStatus) -> list[tuple[str, str]]:
    groups: dict[tuple[str, str], list[float]] = {}
    for device in fleet.devices.values():
        if device.score is not None:
            key = device.about.get("profile", "devices"), device.measure
            groups.setdefault(key, []).append(device.score)
    return [
        (f"{group} {measure}", words.measure_text(measure, fmean(values)))
        for (group, measure), values in sorted(groups.items())
    ]


def leaving(fleet: FleetStatus) -> list[dict[str, Any]]:
    """Returns what leaves devices: each tensor with its size, and how many devices share it."""
    holders: Counter[tuple[str, tuple[int, ...]]] = Counter()
    sizes: dict[str, int] = {}
    for device in fleet.devices.values():
        sizes.update(device.shared_bytes)
        holders.update(device.shares.items())
    return [
        {
            "name": name,
            "shape": " × ".join(map(str, shape)) or "scalar",
            "bytes": words.size(sizes[name]),
            "devices": number,
        }
        for (name, shape), number in sorted(holders.items())
    ]
