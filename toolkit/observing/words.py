"""A fleet's numbers and times in words, the same on the terminal and on the page; pure."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.observing.status import Activity, DeviceStatus, Doing

UNKNOWN = "–"
# A symbol for each activity beside its colour: nobody has to tell colours apart.
SYMBOLS = {
    Activity.TRAINING: "▶",
    Activity.WAITING: "◷",
    Activity.PAUSED: "‖",
    Activity.OFFLINE: "○",
    Activity.UNKNOWN: "?",
}
_BLOCKS = "▁▂▃▄▅▆▇█"


def ago(then_ms: int, now_ms: int) -> str:
    """Returns how long ago something was; a clock that is ahead says "now"."""
    if not then_ms:
        return UNKNOWN
    seconds = max(0, now_ms - then_ms) // 1000
    if seconds < 2:
        return "now"
    return f"{duration(seconds)} ago"


def duration(seconds: float) -> str:
    """Returns a time in its one or two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    whole = round(seconds)
    for name, size, below in (("d", 86_400, "h"), ("h", 3600, "min"), ("min", 60, "s")):
        if whole >= size:
            many, rest = divmod(whole, size)
            smaller = rest // {"h": 3600, "min": 60, "s": 1}[below]
            return f"{many} {name} {smaller} {below}" if smaller and many < 10 else f"{many} {name}"
    return f"{whole} s"


def size(number: float | None) -> str:
    """Returns bytes in binary units."""
    if number is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def score(device: DeviceStatus) -> str:
    """Returns the measure of a device; an accuracy in percent."""
    return measure_text(device.measure, device.score)


def measure_text(measure: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{100 * value:.1f} %" if "accuracy" in measure else f"{value:.4g}"


def memory(device: DeviceStatus) -> str:
    used, cap = (device.metrics.get(f"memory_{what}bytes") for what in ("", "cap_"))
    if used is None:
        return UNKNOWN
    return f"{size(used)} of {size(cap)}" if cap else size(used)


def temperature(device: DeviceStatus) -> str:
    celsius = device.metrics.get("temperature_celsius")
    return UNKNOWN if celsius is None else f"{celsius:.0f} °C"


def doing(found: Doing, now_ms: int) -> str:
    """Returns an activity with its reason and its time, where they are known."""
    text = str(found.activity)
    if found.activity is Activity.OFFLINE and found.since_ms:
        text += f", last seen {ago(found.since_ms, now_ms)}"
    return f"{text} ({found.why})" if found.why else text


def spark(values: Sequence[float], width: int = 12) -> str:
    """Returns the newest values as blocks of eight heights."""
    shown = values[-width:]
    if not shown:
        return ""
    least, most = min(shown), max(shown)
    span = most - least or 1.0
    return "".join(_BLOCKS[round(7 * (value - least) / span)] for value in shown)
