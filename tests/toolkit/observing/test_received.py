"""The status of a fleet follows from its messages, and nothing that arrives can harm it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.metrics import metrics_text
from broker.protocol.messages import AggregatorState, DeviceState, FleetReport, to_bytes
from broker.protocol.slice import SharedTensor, Slice
from broker.protocol.topics import Topics
from toolkit.observing.received import received
from toolkit.observing.status import Activity, DeviceStatus, FleetStatus

TOPICS = Topics("orchard")
EMPTY = FleetStatus(fleet="orchard")
SLICE = Slice.of([SharedTensor.of("conv/kernel", (3, 3, 1, 8), "float32", "r")])
ONLINE = AggregatorState(status="online", run="run-1", mode="sync", merge="mean", round=4)


def birth(device: str, **changes: Any) -> tuple[str, bytes]:
    about = {"profile": "weak", "branch": "digits", "runtime": "tflite-runtime"}
    state = replace(DeviceState.birth(device, SLICE, about), **changes)
    return TOPICS.state(device), to_bytes(state)


def gone(device: str) -> tuple[str, bytes]:
    return TOPICS.state(device), to_bytes(DeviceState(device=device, online=False))


def metrics(device: str, **values: float) -> tuple[str, bytes]:
    text = metrics_text({f"device_{name}": value for name, value in values.items()})
    return TOPICS.metrics(device), text.encode()


def aggregator(**changes: Any) -> tuple[str, bytes]:
    return TOPICS.aggregator_state, to_bytes(replace(ONLINE, **changes))


def report(**changes: Any) -> tuple[str, bytes]:
    known = FleetReport(
        run="run-1",
        round=4,
        time_ms=9000,
        began_ms=8000,
        deadline_ms=60_000,
        quorum=2,
        last_round=100,
        devices={"pi-1": {"seen": 8500, "there": True, "round": 4, "late": 2, "bytes": 700}},
        rounds={"4": {"began": 7000, "closed": 8000, "devices": 2, "late": ["pi-2"]}},
    )
    return TOPICS.report, to_bytes(replace(known, **changes))


def after(*messages: tuple[str, bytes], now_ms: int = 10_000, **how: Any) -> FleetStatus:
    fleet = EMPTY
    for topic, payload in messages:
        fleet = received(fleet, topic, payload, now_ms=now_ms, **how)
    return fleet


def test_a_birth_describes_the_device_and_what_leaves_it() -> None:
    device = after(birth("pi-1")).devices["pi-1"]
    assert (device.online, device.seen_ms, device.since_ms) == (True, 10_000, 10_000)
    assert device.about == {"profile": "weak", "branch": "digits", "runtime": "tflite-runtime"}
    assert device.shared_bytes == {"conv/kernel": 4 * 72}


def test_metrics_have_a_measure_and_a_score() -> None:
    fleet = after(metrics("pi-1", round=7, train_loss=0.5, loss=0.4, accuracy=0.91))
    device = fleet.devices["pi-1"]
    assert (device.measure, device.score, device.trained_round) == ("accuracy", 0.91, 7)
    only_loss = after(metrics("pi-1", round=7, train_loss=0.5)).devices["pi-1"]
    assert (only_loss.measure, only_loss.score) == ("train_loss", 0.5)
    stream = after(metrics("pi-1", test_then_train_accuracy=0.8, loss=0.4)).devices["pi-1"]
    assert (stream.measure, stream.score) == ("test_then_train_accuracy", 0.8)
    assert after(metrics("pi-1", accuracy=float("nan"))).devices["pi-1"].score is None


@pytest.mark.parametrize(
    ("messages", "activity", "why"),
    [
        ([aggregator(), birth("pi-1")], Activity.TRAINING, ""),
        (
            [aggregator(), birth("pi-1"), report()],
            Activity.WAITING,
            "its part of the round is done",
        ),
        ([aggregator(round=5), birth("pi-1"), report()], Activity.TRAINING, ""),
        ([aggregator(), birth("pi-1"), gone("pi-1")], Activity.OFFLINE, ""),
        ([birth("pi-1")], Activity.WAITING, "the fleet has no aggregator"),
        ([aggregator(status="offline"), birth("pi-1")], Activity.WAITING, "no aggregator"),
        ([aggregator(status="finished"), birth("pi-1")], Activity.WAITING, "has finished"),
        ([metrics("pi-1", round=1)], Activity.UNKNOWN, "has not been heard"),
    ],
)
def test_what_a_device_is_doing(messages: Any, activity: Activity, why: str) -> None:
    found = after(*messages).doing("pi-1")
    assert found.activity is activity
    assert why in found.why


def test_the_report_knows_devices_that_a_broker_does_not_show() -> None:
    """One that delivers nothing retained to a subscription with a wildcard."""
    fleet = after(aggregator(), report())
    device = fleet.devices["pi-1"]
    assert (device.online, device.seen_ms, device.late) == (True, 8500, 2)
    assert (device.update_bytes, fleet.quorum, fleet.last_round) == (700, 2, 100)
    (merged,) = fleet.rounds
    assert (merged.number, merged.seconds, merged.late) == (4, 1.0, ("pi-2",))


def test_a_will_is_newer_than_the_report() -> None:
    fleet = after(aggregator(), birth("pi-1"), gone("pi-1"), report())
    assert fleet.doing("pi-1").activity is Activity.OFFLINE
    assert fleet.devices["pi-1"].about["profile"] == "weak"  # what was known stays


def test_what_is_retained_does_not_say_when() -> None:
    device = after(gone("pi-1"), retained=True).devices["pi-1"]
    assert (device.seen_ms, device.since_ms) == (0, 0)


def test_a_new_run_begins_with_its_own_rounds() -> None:
    fleet = after(aggregator(), report(), aggregator(run="run-2", round=0))
    assert (fleet.round, fleet.rounds) == (0, ())
    assert after(aggregator(run="run-2", round=0), report()).round == 0  # of the run before


def test_counters_and_refusals_by_reason() -> None:
    text = metrics_text({"round": 3, "sent_bytes": 10, 'refused{reason="late"}': 2})
    fleet = after((TOPICS.aggregator_metrics, text.encode()))
    assert fleet.refused == {"late": 2}
    assert fleet.counters == {"round": 3.0, "sent_bytes": 10.0}


def test_a_cleared_state_removes_the_device() -> None:
    assert after(birth("pi-1"), (TOPICS.state("pi-1"), b"")).devices == {}


TEXTS = [t for t, _ in (aggregator(), report(), birth("pi-1"), metrics("pi-1"))]
GOOD = [aggregator(), report(), birth("pi-1"), gone("pi-1"), metrics("pi-1", accuracy=0.5)]


@settings(max_examples=150, deadline=None)
@given(
    topic=st.sampled_from([*TEXTS, TOPICS.aggregator_metrics, TOPICS.state("a b"), "elsewhere"]),
    payload=st.one_of(
        st.binary(max_size=80),
        st.tuples(st.sampled_from(GOOD), st.integers(0, 400), st.integers(0, 255)).map(
            lambda t: t[0][1][: t[1]] + bytes([t[2]]) + t[0][1][t[1] + 1 :]
        ),
    ),
)
def test_nothing_that_arrives_raises_or_loses_a_device(topic: str, payload: bytes) -> None:
    before = after(*GOOD[:3])
    found = received(before, topic, payload, now_ms=1)
    if payload or not topic.endswith("/state"):
        assert {"pi-1"} <= set(found.devices)
    for name, device in found.devices.items():
        found.doing(name)
        assert isinstance(device, DeviceStatus)


@pytest.mark.parametrize(
    "devices",
    [
        {"pi-1": 3},
        {"pi-1": {"seen": "now"}},
        {"pi-1": {"late": -1}},
        {"a/b": {}},
        {"p": {"refused": []}},
    ],
)
def test_a_report_that_is_none_is_counted_and_changes_nothing(devices: Any) -> None:
    fleet = after(aggregator(), report(devices=devices))
    assert (fleet.unreadable, dict(fleet.devices), fleet.rounds) == (1, {}, ())


@pytest.mark.parametrize("number", ["-1", "9" * 30, "x"])
def test_a_round_without_a_number_is_none(number: str) -> None:
    fleet = after(aggregator(), report(rounds={number: {"began": 1, "closed": 2, "devices": 1}}))
    assert (fleet.unreadable, fleet.rounds) == (1, ())
