"""What the aggregator refuses, and what it answers then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker.aggregator.contract import MAX_SAMPLES
from broker.aggregator.records.counters import Counters
from broker.merging.coordinator import Entry, State
from broker.merging.presence import MAX_DEVICES
from broker.protocol.messages import (
    DeviceState,
    Reason,
    Update,
    Verdict,
    to_bytes,
)
from tests.broker.aggregator.world import (
    TOPICS,
    WHOLE,
    Device,
    Fleet,
    Start,
    draw,
    frozen,
    ones,
)

# --- refusals ------------------------------------------------------------------------------------

nan = ones(1.0)
nan["stem/bias"] = np.full((40,), np.nan, np.float32)
huge = ones(1.0)
huge["stem/bias"] = np.full((40,), 1e15, np.float32)

REFUSED: dict[str, tuple[Reason, Callable[[Device], Update | bytes]]] = {
    "too large": (Reason.OVERSIZED, lambda d: bytes(2**22 + 1)),
    "larger than the slice": (Reason.OVERSIZED, lambda d: bytes(2**20 + 8000)),
    "empty": (Reason.MALFORMED, lambda d: b""),
    "garbage": (Reason.MALFORMED, lambda d: b"garbage" * 9),
    "cut off": (Reason.MALFORMED, lambda d: to_bytes(d.update())[:-1]),
    "another message": (
        Reason.MALFORMED,
        lambda d: to_bytes(DeviceState(device=d.name, online=False)),
    ),
    "no nonce": (Reason.MALFORMED, lambda d: d.update(nonce="")),
    "negative round": (Reason.MALFORMED, lambda d: d.update(-1)),
    "another device's": (Reason.FOREIGN, lambda d: d.update(device="b")),
    "another run's": (Reason.FOREIGN, lambda d: d.update(run="run-0")),
    "unknown tensor": (Reason.WRONG_NAME, lambda d: d.update(tensors={"x": np.ones(2, "f4")})),
    "no tensor": (Reason.WRONG_NAME, lambda d: d.update(tensors={})),
    "shape": (Reason.WRONG_SHAPE, lambda d: d.update(tensors={"stem/bias": np.ones(2, "f4")})),
    "dtype": (Reason.WRONG_DTYPE, lambda d: d.update(tensors={"stem/bias": np.ones(40, "f8")})),
    "fingerprint": (Reason.WRONG_FINGERPRINT, lambda d: d.update(fingerprint="f" * 64)),
    "exchange": (Reason.WRONG_EXCHANGE, lambda d: d.update(exchange="gradient")),
    "NaN": (Reason.NOT_FINITE, lambda d: d.update(tensors=nan)),
    "beyond training": (Reason.NOT_FINITE, lambda d: d.update(tensors=huge)),
    "no samples": (Reason.BAD_SAMPLES, lambda d: d.update(samples=0)),
    "all samples": (Reason.BAD_SAMPLES, lambda d: d.update(samples=MAX_SAMPLES + 1)),
    "late": (Reason.LATE, lambda d: d.update(2, nonce="other")),
    "early": (Reason.EARLY, lambda d: d.update(4)),
    "second": (Reason.SECOND, lambda d: d.update(3, nonce="other")),
}


def events_counted(fleet: Fleet) -> Counters:
    """Everything that is counted besides refusals; sizes and times have nothing to do with it."""
    return replace(
        fleet.aggregator.counters,
        refused=Counter(),
        round=0,
        devices_present=0,
        received_bytes=0,
        sent_bytes=0,
        merge_seconds=0.0,
    )


def assert_refused(fleet: Fleet, device: Device, sent: Update | bytes, reason: Reason) -> Verdict:
    """It is counted and answered, and nothing else happens."""
    spy = fleet.spy()
    spy.hear()
    before, journal = frozen(fleet.aggregator.state), fleet.journal
    counted = events_counted(fleet)
    device.verdicts()
    device.send(sent)
    fleet.settle()
    [verdict] = device.verdicts()
    assert (verdict.accepted, verdict.about, verdict.reason) == (False, "update", reason)
    assert verdict.text.endswith(".")
    assert fleet.aggregator.counters.refused == {reason: 1}
    assert events_counted(fleet) == counted
    assert (frozen(fleet.aggregator.state), fleet.journal) == (before, journal)
    said = {topic for topic, _ in spy.hear()} - {TOPICS.update(device.name)}
    assert said <= {TOPICS.verdict(device.name), TOPICS.aggregator_metrics}
    [event] = fleet.events("refused")
    assert (event["device"], event["reason"]) == (device.name, reason)
    return verdict


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_update_is_counted_and_answered(start: Start, case: str) -> None:
    reason, make = REFUSED[case]
    ledger = {"a": Entry(2, "a-2", 10, tuple(ones(0.0))), "z": Entry(2, "z-2", 1, ())}
    fleet = start(state=State("run-1", 3, draw(0, WHOLE), {}, ledger))
    a = fleet.device("a")
    a.birth()
    a.send(a.update(3))  # z, which took part before, is waited for
    fleet.settle()
    assert fleet.journal
    assert_refused(fleet, a, make(a), reason)


def test_a_replayed_update_is_refused(start: Start) -> None:
    fleet = start("async")
    a = fleet.device("a")
    for round in range(2):
        a.send(a.update(round))
    fleet.settle()
    verdict = assert_refused(fleet, a, a.update(0), Reason.REPLAYED)
    assert (verdict.round, verdict.nonce) == (0, "a-0")


def test_a_newcomer_to_a_full_fleet_is_refused(start: Start) -> None:
    ledger = {f"d{k}": Entry(0, "old", 1, ()) for k in range(MAX_DEVICES)}
    fleet = start(state=State("run-1", 5, draw(0, WHOLE), {}, ledger))
    a = fleet.device("a")
    fleet.settle()
    verdict = assert_refused(fleet, a, a.update(5), Reason.FULL)
    assert (verdict.round, verdict.nonce) == (5, "a-5")


def test_after_the_last_round_updates_are_refused(start: Start) -> None:
    fleet = start(state=State("run-1", 5, draw(0, WHOLE), {}), rounds=5)
    a = fleet.device("a")
    fleet.settle()
    assert_refused(fleet, a, a.update(5), Reason.FINISHED)


READABLE = [name for name, (reason, _) in REFUSED.items() if reason not in (
    Reason.OVERSIZED, Reason.MALFORMED)]  # fmt: skip


@pytest.mark.parametrize("case", READABLE)
def test_a_refusal_says_which_update_it_is_about(start: Start, case: str) -> None:
    """Otherwise the device would not know its verdict, and would send for ever."""
    ledger = {"a": Entry(2, "a-2", 10, tuple(ones(0.0))), "z": Entry(2, "z-2", 1, ())}
    fleet = start(state=State("run-1", 3, draw(0, WHOLE), {}, ledger))
    a = fleet.device("a")
    a.send(a.update(3))
    fleet.settle()
    a.verdicts()
    sent = REFUSED[case][1](a)
    assert isinstance(sent, Update)
    a.send(sent)
    fleet.settle()
    [verdict] = a.verdicts()
    assert (verdict.round, verdict.nonce) == (sent.round, sent.nonce)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "b"}, Reason.FOREIGN),
        ({"tensors_shared": {"x": 3}}, Reason.MALFORMED),
        (
            {"tensors_shared": {"x": {"shape": [2], "dtype": "float32", "fingerprint": "f"}}},
            Reason.WRONG_FINGERPRINT,
        ),
    ],
    ids=["another device's", "malformed", "another slice"],
)
def test_a_refused_birth_is_answered_and_not_waited_for(
    start: Start, change: dict[str, Any], reason: Reason
) -> None:
    fleet = start()
    a, b = fleet.device("a"), fleet.device("b")
    a.birth()
    b.birth()
    b.send(b.update())
    fleet.settle()
    assert fleet.shared.round == 0
    a.verdicts()
    a.birth(**change)
    fleet.settle()
    [verdict] = a.verdicts()
    assert (verdict.about, verdict.accepted, verdict.reason) == ("join", False, reason)
    assert fleet.aggregator.counters.refused == {reason: 1}
    assert fleet.shared.round == 1, "b was the only one left"


@pytest.mark.parametrize("key", ["device", "name", "self", "time", "event"])
def test_what_a_device_says_about_itself_cannot_harm(start: Start, key: str) -> None:
    fleet = start()
    a = fleet.device("a")
    a.birth(about={key: "merged", "branch": {"deep": [1, None]}})
    fleet.settle()
    assert [v.accepted for v in a.verdicts()] == [True]
    assert [event["device"] for event in fleet.events("joined")] == ["a"]
