"""What an aggregator reports of its devices and rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from broker.aggregator.records.report import MOST_DEVICES, MOST_LATE, MOST_ROUNDS, Report
from broker.merging.coordinator import Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import parse_optimizer
from broker.protocol.messages import SMALL, FleetReport, Reason, Update, from_bytes, to_bytes

SETTINGS = Settings(
    mode="sync",
    merge=MergeRule("mean"),
    optimizer=parse_optimizer(None, "delta"),
    quorum=2,
    deadline_seconds=60.0,
    rounds=100,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def update(device: str, round: int) -> Update:
    return Update(
        device=device,
        run="run-1",
        round=round,
        nonce="n",
        samples=12,
        exchange="delta",
        fingerprint="",
        tensors={"w": np.zeros(2, np.float32)},
    )


def written(report: Report, round: int = 0) -> FleetReport:
    """The report as it arrives."""
    state = State("run-1", round, {}, {})
    return from_bytes(FleetReport, to_bytes(report.message(state, SETTINGS)))


def test_a_round_has_its_times_and_who_was_late() -> None:
    clock = Clock()
    report = Report(clock)
    for device in ("pi-1", "pi-2", "pi-3"):
        report.there(device)
    report.accepted(update("pi-1", 0), bytes=500, behind=0)
    clock.now = 1060.5
    report.closed(1, 1, ["pi-2"])
    clock.now = 1062.0
    report.refused("pi-3", Reason.LATE, 0)
    report.refused("pi-2", Reason.LATE, 0)  # the one that was waited for counts once
    found = written(report, 1)
    late = {"began": 1_000_000, "closed": 1_060_500, "devices": 1, "late": ["pi-2", "pi-3"]}
    assert found.rounds == {"1": late}
    assert found.began_ms == 1_060_500
    assert (found.quorum, found.deadline_ms, found.last_round) == (2, 60_000, 100)
    assert {name: entry["late"] for name, entry in found.devices.items()} == {
        "pi-1": 0,
        "pi-2": 1,
        "pi-3": 1,
    }
    assert found.devices["pi-1"] == {
        "seen": 1_000_000,
        "there": True,
        "round": 0,
        "behind": 0,
        "samples": 12,
        "bytes": 500,
        "accepted": 1,
        "late": 0,
        "refused": {},
    }
    assert found.devices["pi-3"]["refused"] == {"late": 1}


def test_a_device_that_left_is_reported_so_until_it_comes_back() -> None:
    report = Report(Clock())
    report.there("pi-1")
    report.gone("pi-1")
    assert written(report).devices["pi-1"]["there"] is False
    report.gone("pi-1")
    assert not report.changed
    report.there("pi-1")
    assert report.changed
    assert written(report).devices["pi-1"]["there"] is True


def test_the_largest_report_fits_in_a_message() -> None:
    report = Report(Clock())
    names = [f"{i:0>63}" for i in range(MOST_DEVICES + 1)]
    for name in names:
        report.accepted(update(name, 2**40), bytes=2**30, behind=2**20)
        report.refused(name, Reason.LATE)
    for number in range(MOST_ROUNDS + 5):
        report.closed(number, 2**20, names)
    sent = to_bytes(report.message(State("run-1", 0, {}, {}), SETTINGS))
    assert len(sent) < SMALL
    found = from_bytes(FleetReport, sent)
    assert len(found.devices) == MOST_DEVICES
    assert names[0] not in found.devices  # the one that was silent for longest
    assert len(found.rounds) == MOST_ROUNDS
    assert all(len(merged["late"]) == MOST_LATE for merged in found.rounds.values())


def test_what_cannot_be_a_device_is_not_reported() -> None:
    report = Report(Clock())
    names: list[Any] = ["", "a/b", "ä", "x" * 64, "aggregator"]
    for name in names:
        report.refused(name, Reason.MALFORMED)
    assert written(report).devices == {}
