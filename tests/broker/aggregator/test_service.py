"""The aggregator over a broker in memory: rounds, what is durable first, numbers to watch."""

from __future__ import annotations

import numpy as np
import pytest

import broker.aggregator.service
from broker.aggregator.storage.journal import RECORD_BYTES
from broker.errors import StoreError
from broker.merging.bounds import Bounds
from broker.protocol.messages import (
    Shared,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.transport.in_memory import MemoryBroker
from tests.broker.aggregator.world import (
    DEADLINE,
    TOPICS,
    WHOLE,
    Start,
    frozen,
    frozen_after_restart,
    ones,
)
from tests.harness.metrics import read_metrics


def test_the_log_says_how_it_merges_and_why(start: Start) -> None:
    [event] = start(merge="samples", optimizer="momentum:0.5").events("merging")
    assert (event["merge"], event["because"]) == ("samples", "it is given")
    momentum = "Momentum(beta=0.5, learning_rate=1.0)"
    assert event["optimizer"] == f"PseudoGradient(optimizer={momentum})"


# --- a round -------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [None, 6000], ids=["whole", "in parts"])
def test_two_devices_learn_together(start: Start, most: int | None) -> None:
    fleet = start(memory=MemoryBroker(max_packet_bytes=most), quorum=2)
    a, b = fleet.device("a"), fleet.device("b", WHOLE)
    for device in (a, b):
        device.birth()
    fleet.settle()
    for device in (a, b):
        [join] = device.verdicts()
        assert (join.about, join.accepted, join.run, join.device) == (
            "join", True, "run-1", device.name,
        )  # fmt: skip
    assert (fleet.shared.round, fleet.shared.last) == (0, False)
    a.send(a.update(tensors=ones(1.0)))
    fleet.settle()
    assert fleet.shared.round == 0, "b is waited for"
    b.send(b.update(tensors=ones(3.0, WHOLE)))
    fleet.settle()
    for device in (a, b):
        [verdict] = device.verdicts()
        assert verdict == Verdict(
            device=device.name, about="update", run="run-1", accepted=True, round=0,
            nonce=f"{device.name}-0",
        )  # fmt: skip
    shared = fleet.shared
    assert (shared.run, shared.round, shared.fingerprint) == ("run-1", 1, WHOLE.fingerprint)
    assert {n: float(v.ravel()[0]) for n, v in shared.tensors.items()} == {
        "stem/kernel": 2,
        "stem/bias": 2,
        "tail/kernel": 3,
    }
    counters = fleet.aggregator.counters
    assert (counters.updates_accepted, counters.rounds_merged, counters.births_accepted) == (
        2,
        1,
        2,
    )
    assert fleet.journal == b"", "the snapshot covers it"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_liar_is_limited_counted_and_named(start: Start, mode: str) -> None:
    fleet = start(mode, "samples", quorum=4, bounds=Bounds())
    devices = [fleet.device(name) for name in ("a", "b", "c", "liar")]
    for device in devices:
        device.birth()
    fleet.settle()
    for number, device in enumerate(devices[:3]):
        round = number if mode == "async" else 0
        device.send(device.update(round, tensors=ones(1.0), samples=100))
        fleet.settle()
    before = fleet.aggregator.state.shared["stem/bias"][0]
    lie = devices[3].update(3 * (mode == "async"), tensors=ones(-1e6), samples=10**9)
    devices[3].send(lie)
    fleet.settle()
    # Each of the others contributes 100 samples · 1; the liar twice that, the other way.
    moved = fleet.aggregator.state.shared["stem/bias"][0] - before
    assert moved == pytest.approx((100 if mode == "sync" else -200) / 300, rel=1e-3)
    counters = fleet.aggregator.counters
    assert (counters.updates_clipped, counters.weights_bounded) == (1, 1)
    [event] = fleet.events("limited")
    assert (event["clipped"], event["bounded"]) == (["liar"], ["liar"])


def test_a_round_closes_at_its_deadline_or_goes_on_below_quorum(start: Start) -> None:
    fleet = start(quorum=2)
    a, b, c = (fleet.device(name) for name in "abc")
    for device in (a, b, c):
        device.birth()
    a.send(a.update())
    fleet.settle()
    began = fleet.clock.now
    while fleet.clock.now < began + DEADLINE + 1:
        fleet.turn()
    counters = fleet.aggregator.counters
    assert (counters.rounds_extended, counters.rounds_merged, fleet.shared.round) == (1, 0, 0)
    b.send(b.update())
    while fleet.clock.now < began + 2 * DEADLINE + 1:
        fleet.turn()
    assert (counters.rounds_extended, counters.rounds_merged, fleet.shared.round) == (1, 1, 1)
    assert [e["devices"] for e in fleet.events("extended") + fleet.events("merged")] == [1, 2]


def test_whoever_is_lost_is_not_waited_for(start: Start) -> None:
    fleet = start()
    a, b = fleet.device("a"), fleet.device("b")
    for device in (a, b):
        device.birth()
    a.send(a.update())
    fleet.settle()
    assert fleet.shared.round == 0
    b.transport.drop()  # the broker sends its will
    fleet.settle()
    assert fleet.shared.round == 1
    assert [event["device"] for event in fleet.events("left")] == ["b"]
    fleet.aggregator._publish_metrics()
    assert fleet.aggregator.counters.devices_present == 1


def test_a_verdict_that_got_lost_is_given_again(start: Start) -> None:
    fleet = start("sync", "sum")
    a = fleet.device("a")
    a.birth()
    for _ in range(3):
        a.send(a.update())
    fleet.settle()
    assert [v.accepted for v in a.verdicts()] == [True, True, True, True]
    np.testing.assert_array_equal(fleet.shared.tensors["stem/bias"], 1)
    counters = fleet.aggregator.counters
    assert (counters.updates_accepted, counters.updates_duplicate) == (1, 2)


def test_a_cleared_birth_is_nothing(start: Start) -> None:
    fleet = start()
    a = fleet.device("a")
    a.channel.publish(TOPICS.state("a"), b"", retain=True)
    fleet.settle()
    assert a.verdicts() == []
    assert sum(fleet.aggregator.counters.refused.values()) == 0


# --- nothing is told before it is durable --------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_no_verdict_goes_out_before_its_update_is_durable(start: Start, mode: str) -> None:
    fleet = start(mode)
    a = fleet.device("a")
    fleet.settle()
    spy = fleet.spy()
    spy.hear()
    a.send(a.update())
    fleet.store.broken = True
    with pytest.raises(StoreError, match="disk is full"):
        fleet.turn()
    assert [topic for topic, _ in spy.hear()] == [TOPICS.update("a")]


def test_theta_is_not_published_before_its_updates_are_durable(start: Start) -> None:
    """The link comes up in the same turn in which an update of before arrives."""
    memory = MemoryBroker()
    fleet = start("async", memory=memory)
    a = fleet.device("a")
    fleet.settle()
    a.send(a.update())
    fleet.transport.drop()
    fleet.transport.reconnect()
    spy = fleet.spy()
    spy.hear()
    fleet.store.broken = True
    with pytest.raises(StoreError, match="disk is full"):
        fleet.turn()
    told = [from_bytes(Shared, p, limit=2**22) for t, p in spy.hear() if t == TOPICS.shared]
    assert all(shared.round == 0 for shared in told)


# --- asynchronous --------------------------------------------------------------------------------


def test_a_reply_goes_to_its_device_alone(start: Start) -> None:
    fleet = start("async", "sum")
    a, b = fleet.device("a"), fleet.device("b")
    fleet.settle()
    b.hear()
    spy = fleet.spy()
    spy.hear()
    a.send(a.update())
    fleet.settle()
    assert [topic for topic, _ in spy.hear()] == [
        TOPICS.update("a"),
        TOPICS.reply("a"),
        TOPICS.verdict("a"),
    ]
    assert b.hear() == []
    [(_, payload)] = [(t, p) for t, p in a.hear() if t == TOPICS.reply("a")]
    reply = from_bytes(Shared, payload, limit=2**22)
    assert (reply.run, reply.round, reply.last) == ("run-1", 1, False)
    np.testing.assert_array_equal(reply.tensors["stem/bias"], 1)
    assert fleet.shared.round == 0, "only a newcomer's retained θ_shared, which its join renews"


def test_a_newcomer_gets_the_newest_theta(start: Start) -> None:
    fleet = start("async")
    a, b = fleet.device("a"), fleet.device("b")
    a.send(a.update())
    fleet.settle()
    b.birth()
    fleet.settle()
    heard = b.hear()
    [reply] = [from_bytes(Shared, p, limit=2**22) for t, p in heard if t == TOPICS.reply("b")]
    assert reply.round == 1


def test_a_long_journal_becomes_a_snapshot(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = start("async")
    a = fleet.device("a")
    size = RECORD_BYTES + len(to_bytes(a.update()))
    monkeypatch.setattr(broker.aggregator.service, "JOURNAL_LIMIT", 3 * size)
    for round in range(4):
        a.send(a.update(round))
        fleet.settle()
        assert len(fleet.journal) == (round + 1) % 4 * size
    assert frozen_after_restart(start, fleet) == frozen(fleet.aggregator.state)


# --- numbers to watch ----------------------------------------------------------------------------


def test_metrics_are_published_and_read_back(start: Start) -> None:
    fleet = start()
    a = fleet.device("a")
    a.birth()
    a.send(a.update())
    a.send(a.update(7))
    fleet.settle()
    began = fleet.clock.now
    while fleet.clock.now < began + broker.aggregator.service.METRICS_SECONDS + 1:
        fleet.turn()
    payload = fleet.retained(TOPICS.aggregator_metrics)
    assert payload is not None
    values = read_metrics(payload)
    expected = {
        "round": 1,
        "devices_present": 1,
        "rounds_merged": 1,
        "rounds_extended": 0,
        "births_accepted": 1,
        "updates_accepted": 1,
        "updates_duplicate": 0,
        'refused{reason="early"}': 1,
        "packets_dropped": 0,
    }
    assert {name: values[name] for name in expected} == expected
    assert values["received_bytes"] == fleet.transport.received_bytes > 2 * 6400
    assert 0 < values["sent_bytes"] <= fleet.transport.sent_bytes
