"""When a profile makes a device pause, decided from files that stand in for sensors."""

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.log import Log
from firmware_sim.errors import SensorError
from firmware_sim.training.pace import Readings, reason_to_pause, sets_limits
from firmware_sim.training.sensors import READ_SECONDS, Pace, read_sensors
from firmware_sim.training.waiting import Waiting
from profiles import Profile, load_profile, profile_names


def weak(**limits: Any) -> Profile:
    return replace(load_profile("weak"), **limits)


def at(text: str) -> int:
    hours, minutes = text.split(":")
    return 60 * int(hours) + int(minutes)


NOTHING = Readings()


def paused(profile: Profile, readings: Readings = NOTHING, minute: int = 0, **more: Any) -> str:
    found = reason_to_pause(profile, readings, minute, **more)
    return found.cause if found else ""


# --- the decision ---


@pytest.mark.parametrize("name", profile_names())
def test_no_shipped_profile_ever_pauses(name: str) -> None:
    profile = load_profile(name)
    assert not sets_limits(profile)
    assert read_sensors(profile) == Readings()
    assert not any(paused(profile, minute=minute) for minute in range(24 * 60))


@pytest.mark.parametrize(
    ("celsius", "hot", "expected"),
    [
        (80.0, False, ""),
        (80.1, False, "temperature"),
        (75.1, True, "temperature"),
        (75.0, True, ""),
    ],
)
def test_a_hot_device_goes_on_when_it_has_cooled_down(
    celsius: float, hot: bool, expected: str
) -> None:
    profile = weak(temperature_limit_celsius=80.0, hysteresis_celsius=5.0)
    assert paused(profile, Readings(celsius), hot=hot) == expected


@pytest.mark.parametrize(
    ("charge", "expected"), [(None, ""), (41.0, ""), (40.0, "battery"), (3.0, "battery")]
)
def test_on_battery_a_device_trains_above_its_limit(charge: float | None, expected: str) -> None:
    profile = weak(battery_limit_percent=40)
    assert paused(profile, Readings(charge_percent=charge)) == expected
    assert paused(weak(battery_limit_percent=100), Readings(charge_percent=100.0)) == "battery"


@pytest.mark.parametrize(
    ("minute", "expected"),
    [
        ("21:59", ""),
        ("22:00", "quiet_hours"),
        ("23:59", "quiet_hours"),
        ("00:00", "quiet_hours"),
        ("05:59", "quiet_hours"),
        ("06:00", ""),
        ("12:29", ""),
        ("12:30", "quiet_hours"),
        ("13:29", "quiet_hours"),
        ("13:30", ""),
    ],
)
def test_quiet_hours_may_span_midnight(minute: str, expected: str) -> None:
    profile = weak(quiet_hours="22:00-06:00, 12:30-13:30")
    assert paused(profile, minute=at(minute)) == expected


def test_the_reason_says_when_it_ends() -> None:
    everything = weak(
        temperature_limit_celsius=80.0,
        battery_limit_percent=40,
        pause_file="/run/pause",
        quiet_hours="22:00-06:00",
    )
    cool, charged, free = Readings(60.0, 30.0, True), Readings(60.0, 50.0, True), Readings(60.0)
    assert [reason_to_pause(everything, r, at("23:00")) for r in (
        Readings(85.25, 30.0, True), cool, charged, free
    )] == [
        Waiting("temperature", "85.2 °C, and it goes on at 75 °C"),
        Waiting("battery", "on battery at 30 %, and it goes on above 40 %"),
        Waiting("file", "/run/pause exists"),
        Waiting("quiet_hours", "quiet hours, 22:00-06:00"),
    ]  # fmt: skip


# --- files as the kernel has them ---


def supply(folder: Path, name: str, **files: str) -> Path:
    (folder / name).mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / name / file).write_text(f"{text}\n")
    return folder / name


def test_the_kernel_says_millidegrees(tmp_path: Path) -> None:
    zone = tmp_path / "temp"
    zone.write_text("48312\n")
    profile = weak(temperature_limit_celsius=80.0, temperature_file=str(zone))
    assert read_sensors(profile) == Readings(celsius=48.312)
    zone.write_text("-2000\n")
    assert read_sensors(profile) == Readings(celsius=-2.0)


def test_the_charge_is_that_of_the_fullest_battery_in_use(tmp_path: Path) -> None:
    profile = weak(battery_limit_percent=40, battery_folder=str(tmp_path))
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "mouse", type="Battery", scope="Device", status="Discharging", capacity="99")
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", capacity="12")
    supply(tmp_path, "BAT1", type="Battery", scope="System", status="Charging", capacity="80")
    assert read_sensors(profile) == Readings(charge_percent=12.0)
    supply(tmp_path, "BAT1", status="Discharging", capacity="70")
    assert read_sensors(profile) == Readings(charge_percent=70.0)
    for name in ("BAT0", "BAT1"):
        supply(tmp_path, name, status="Not charging")
    assert read_sensors(profile) == Readings(charge_percent=None)


def test_a_sensor_that_cannot_be_read_is_one_sentence_at_the_start(tmp_path: Path) -> None:
    zone = tmp_path / "temp"
    hot = weak(temperature_limit_celsius=80.0, temperature_file=str(zone))
    battery = weak(battery_limit_percent=40, battery_folder=str(tmp_path / "none"))
    empty = replace(battery, battery_folder=str(tmp_path))
    log = Log(io.StringIO(), as_json=True)

    def refusal(profile: Profile) -> str:
        with pytest.raises(SensorError) as caught:
            Pace(profile, log)
        return str(caught.value)

    missing = "cannot be read (No such file or directory)."
    assert refusal(hot) == f"the sensor {zone} {missing}"
    assert refusal(battery) == f"the sensor {tmp_path}/none {missing}"
    assert refusal(empty) == f"the profile limits the charge, and {tmp_path} has no battery."
    zone.write_text("warm\n")
    assert refusal(hot) == f"the sensor {zone} must say a number, not 'warm'."
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    zone.unlink()
    assert refusal(empty) == f"the sensor {tmp_path}/BAT0/capacity {missing}"


# --- the gate, on a virtual clock ---


class Day:
    """Seconds since midnight, local time."""

    def __init__(self, text: str = "00:00") -> None:
        self.seconds = 60.0 * at(text)

    def __call__(self) -> float:
        return self.seconds

    def local(self) -> time.struct_time:
        return time.gmtime(self.seconds)


def test_the_gate_follows_the_day() -> None:
    day = Day("21:30")
    pace = Pace(
        weak(quiet_hours="22:00-06:00"), Log(io.StringIO()), clock=day, local_time=day.local
    )
    found = []
    for _ in range(24):
        found.append(pace() is not None)
        day.seconds += 3600
    assert found == [False] + 8 * [True] + 15 * [False]


def test_the_gate_reads_once_a_second_and_keeps_hysteresis(tmp_path: Path) -> None:
    zone, day = tmp_path / "temp", Day()
    zone.write_text("79000")
    profile = weak(temperature_limit_celsius=80.0, temperature_file=str(zone))
    pace = Pace(profile, Log(io.StringIO()), clock=day, local_time=day.local)
    said = []
    for celsius in (79, 81, 79, 76, 75, 79, 81):
        zone.write_text(f"{celsius}000")
        said.append(pace() is not None)
        day.seconds += READ_SECONDS
    assert said == [False, True, True, True, False, False, True]
    zone.write_text("20000")
    assert pace() is None
    zone.write_text("99000")
    day.seconds += READ_SECONDS / 2
    assert pace() is None, "not read yet"


def test_a_reading_that_fails_later_pauses_until_it_is_back(tmp_path: Path) -> None:
    zone, day, log = tmp_path / "temp", Day(), io.StringIO()
    zone.write_text("81000")
    profile = weak(temperature_limit_celsius=80.0, temperature_file=str(zone))
    pace = Pace(profile, Log(log, as_json=True), clock=day, local_time=day.local)
    causes = []
    for text in ("81000", None, None, "77000", "70000", None):
        zone.unlink(missing_ok=True)
        if text:
            zone.write_text(text)
        found = pace()
        causes.append(found.cause if found else "")
        day.seconds += READ_SECONDS
    assert causes == ["temperature", "sensor", "sensor", "temperature", "", "sensor"]
    said = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["event"] for line in said] == ["sensor_failed"] * 2, "once for each failure"
    assert said[0]["text"] == f"the sensor {zone} cannot be read (No such file or directory)."
