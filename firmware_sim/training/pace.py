"""When a device pauses for the sake of power, heat or people, as its profile says; pure.

    temperature   above L °C, until it is at most L - h: h is the hysteresis
    battery       while it runs on battery and the charge is at most the limit
    file          while the file exists
    quiet hours   while the local time is in one of the intervals

`sensors.py` reads what this decides upon.
"""

from __future__ import annotations

from dataclasses import dataclass

from firmware_sim.training.waiting import Waiting
from profiles import Profile


@dataclass(frozen=True)
class Readings:
    """What a device knows of its surroundings; None where the profile sets no limit."""

    celsius: float | None = None
    charge_percent: float | None = None  # only while it runs on battery
    file_exists: bool = False


def reason_to_pause(
    profile: Profile, readings: Readings, minute: int, *, hot: bool = False
) -> Waiting | None:
    """Returns why the device pauses now, or None.

    `minute` is that of the local day, and `hot` whether it pauses for its temperature already.
    """
    celsius, charge = readings.celsius, readings.charge_percent
    limit = profile.temperature_limit_celsius
    resume = limit - profile.hysteresis_celsius
    if celsius is not None and celsius > (resume if hot else limit):
        return Waiting("temperature", f"{celsius:.1f} °C, and it goes on at {resume:g} °C")
    if charge is not None and charge <= (least := profile.battery_limit_percent):
        return Waiting("battery", f"on battery at {charge:g} %, and it goes on above {least} %")
    if readings.file_exists:
        return Waiting("file", f"{profile.pause_file} exists")
    for interval in filter(None, profile.quiet_hours.split(",")):
        begin, end = (_minute(text) for text in interval.split("-"))
        if _is_within(minute, begin, end):
            return Waiting("quiet_hours", f"quiet hours, {interval.strip()}")
    return None


def sets_limits(profile: Profile) -> bool:
    """Whether there is anything that the device would have to pause for."""
    limits = profile.temperature_limit_celsius or profile.battery_limit_percent
    return bool(limits or profile.pause_file or profile.quiet_hours)


def _minute(text: str) -> int:
    hours, minutes = text.split(":")
    return 60 * int(hours) + int(minutes)


def _is_within(minute: int, begin: int, end: int) -> bool:
    """Whether it is from `begin` to before `end`, which may be on the next day."""
    if begin < end:
        return begin <= minute < end
    return minute >= begin or minute < end
