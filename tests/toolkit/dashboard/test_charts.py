"""The charts and rows of the page."""

from __future__ import annotations

import pytest

from broker.protocol.messages import AggregatorState
from toolkit.dashboard import charts, colours, rows
from toolkit.observing.curves import Curve
from toolkit.observing.status import Activity, DeviceStatus, FleetStatus, RoundStatus


def curve(*values: float) -> Curve:
    made = Curve()
    for number, value in enumerate(values):
        made.add(number, value)
    return made


def test_a_device_has_a_line_in_percent_and_its_start() -> None:
    options = charts.learning([charts.Line("pi-1", "weak", curve(0.1, 0.95))], "accuracy")
    (series,) = options["series"]
    assert series["data"] == [[0, 10.0], [1, 95.0]]
    assert series["markLine"]["data"] == [{"yAxis": 10.0}]
    assert options["yAxis"]["name"] == "accuracy (%)"
    assert charts.learning([], "rmse")["yAxis"]["type"] == "log"


def test_many_devices_are_shown_as_groups() -> None:
    lines = [
        charts.Line(f"pi-{i}", "weak" if i % 2 else "strong", curve(0.0, i / 20)) for i in range(20)
    ]
    series = charts.learning(lines, "score")["series"]
    assert [s["name"] for s in series] == ["strong (10)"] * 3 + ["weak (10)"] * 3
    mean, least, most = (s["data"][1][1] for s in series[3:])
    assert (mean, least, most) == (pytest.approx(0.5), 0.05, 0.95)


def test_a_round_says_who_was_late() -> None:
    merges = [
        RoundStatus(number=1, began_ms=0, closed_ms=1500, devices=3),
        RoundStatus(number=2, began_ms=1500, closed_ms=6000, devices=2, late=("pi-2",)),
    ]
    in_time, late = charts.rounds(merges)["series"][0]["data"]
    assert (in_time["value"], in_time["late"]) == (1.5, "nobody")
    assert (late["value"], late["late"]) == (4.5, "pi-2")
    assert in_time["itemStyle"]["color"] != late["itemStyle"]["color"]
    assert late["itemStyle"]["decal"]  # not by colour alone


def test_spark_lines_stay_in_their_box() -> None:
    assert charts.spark_path([0.5]) == ""
    assert charts.spark_path([0.0, 1.0], 90, 22) == "M0.0 20.0L90.0 2.0"


def test_the_first_lines_all_differ() -> None:
    assert len({colours.line(i) for i in range(18)}) == 18


def fleet(*devices: DeviceStatus) -> FleetStatus:
    state = AggregatorState(status="online", run="r", mode="sync", merge="mean", exchange="delta")
    named = {device.name: device for device in devices}
    return FleetStatus(fleet="f", aggregator=state, round=5, last_round=20, devices=named)


def test_a_row_has_memory_against_its_cap() -> None:
    mib = 2.0**20
    metrics = {
        "round": 5,
        "accuracy": 0.5,
        "memory_bytes": 120 * mib,
        "memory_cap_bytes": 128 * mib,
    }
    device = DeviceStatus(name="pi-1", online=True, metrics=metrics, seen_ms=1000)
    row = rows.device_row(fleet(device), device, curve(0.1, 0.5), now_ms=4000)
    assert (row["memory"], row["filled"]) == ("120 MiB of 128 MiB", 0.938)
    assert row["full"] == colours.VERMILION
    assert (row["state"], row["score"], row["seen"]) == ("training", "50.0 %", "3 s ago")


def test_the_fleet_at_a_glance() -> None:
    there = DeviceStatus(
        name="a", online=True, metrics={"accuracy": 0.5}, about={"profile": "weak"}
    )
    gone = DeviceStatus(
        name="b", online=False, metrics={"accuracy": 0.7}, about={"profile": "weak"}
    )
    found = rows.glance(fleet(there, gone), 0)
    assert found.activities == {Activity.TRAINING: 1, Activity.OFFLINE: 1}
    assert (found.round, found.part) == ("5 / 20", 0.25)
    assert found.scores == [("weak accuracy", "60.0 %")]


def test_what_leaves_devices_is_counted_by_tensor() -> None:
    shares = {"kernel": (3, 4), "bias": (4,)}
    devices = [DeviceStatus(name=n, shares=shares) for n in "ab"]
    only_bias = DeviceStatus(name="c", shares={"bias": (4,)})
    found = {row["name"]: row for row in rows.leaving(fleet(*devices, only_bias))}
    assert found["kernel"] == {"name": "kernel", "shape": "3 × 4", "bytes": "48 B", "devices": 2}
    assert found["bias"]["devices"] == 3
