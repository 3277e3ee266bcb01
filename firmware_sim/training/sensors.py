"""Reads what a profile limits: the kernel's thermal zone and power supplies, and a file.

A sensor that cannot be read when the device starts is an error. One that fails later is logged
once, and counts as a reason to pause: its limit was set to protect something, the device says why
it pauses, and it goes on as soon as the reading is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from broker.log import Log
from firmware_sim.errors import SensorError
from firmware_sim.training.pace import Readings, reason_to_pause
from firmware_sim.training.waiting import Waiting
from profiles import Profile

READ_SECONDS = 1.0  # between two readings


class Pace:
    """A gate of training: pauses as the profile says."""

    def __init__(
        self,
        profile: Profile,
        log: Log,
        *,
        clock: Callable[[], float] = time.monotonic,
        local_time: Callable[[], time.struct_time] = time.localtime,
    ) -> None:
        """Reads once; raises `SensorError` if something that the profile limits cannot be read."""
        read_sensors(profile)
        self._profile = profile
        self._log = log
        self._clock = clock
        self._local_time = local_time
        self._next = -float("inf")
        self._found: Waiting | None = None
        self._hot = self._failed = False

    def __call__(self) -> Waiting | None:
        """Returns why the device pauses now, or None; reads once in `READ_SECONDS` at most."""
        if (now := self._clock()) >= self._next:
            self._next = now + READ_SECONDS
            self._found = self._look()
        return self._found

    def _look(self) -> Waiting | None:
        try:
            readings = read_sensors(self._profile)
        except SensorError as error:
            if not self._failed:
                self._log.event("sensor_failed", text=str(error))
            self._failed = True
            return Waiting("sensor", str(error))
        self._failed = False
        local = self._local_time()
        minute = 60 * local.tm_hour + local.tm_min
        found = reason_to_pause(self._profile, readings, minute, hot=self._hot)
        self._hot = found is not None and found.cause == "temperature"
        return found


def read_sensors(profile: Profile) -> Readings:
    """Returns what the profile's limits need; raises `SensorError` if it cannot be read."""
    celsius = charge = None
    if profile.temperature_limit_celsius:
        celsius = read_celsius(Path(profile.temperature_file))
    if profile.battery_limit_percent:
        charge = _charge(Path(profile.battery_folder))
    file_exists = bool(profile.pause_file) and Path(profile.pause_file).exists()
    return Readings(celsius, charge, file_exists)


def read_celsius(file: Path) -> float:
    """Returns the temperature in a file of the kernel, which says millidegrees."""
    return _number(file) / 1000


def _charge(folder: Path) -> float | None:
    """Returns the charge of the fullest battery that is being emptied; None on mains."""
    batteries = list(_batteries(folder))
    if not batteries:
        raise SensorError(f"the profile limits the charge, and {folder} has no battery.")
    emptied = [b for b in batteries if _text(b / "status") == "Discharging"]
    return max((_number(battery / "capacity") for battery in emptied), default=None)


def _batteries(folder: Path) -> Iterator[Path]:
    """Yields those that power this device, not a mouse of it."""
    try:
        supplies = sorted(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from None
    for supply in supplies:
        scope = supply / "scope"
        powers_us = not scope.exists() or _text(scope) != "Device"
        if powers_us and _text(supply / "type") in ("Battery", "UPS"):
            yield supply


def _number(file: Path) -> float:
    text = _text(file)
    try:
        return float(int(text))
    except ValueError:
        raise SensorError(f"the sensor {file} must say a number, not {text[:20]!r}.") from None


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(64).decode("ascii", "replace").strip()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(path: Path, error: OSError) -> SensorError:
    return SensorError(f"the sensor {path} cannot be read ({error.strerror}).")
