"""The aggregator after outages and kills, at its end, and against a plain replay."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker.errors import LinkRefused, StoreError
from broker.merging.coordinator import State
from broker.protocol.messages import (
    AggregatorState,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.quantisation import decode_tensors, encode_tensors
from broker.protocol.wire import decode, encode
from broker.transport.in_memory import MemoryTransport
from tests.broker.aggregator.world import (
    SHAPES,
    STEM,
    TOPICS,
    WHOLE,
    Start,
    draw,
    frozen,
    ones,
)

# --- outages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("forget", [False, True], ids=["with persistence", "without"])
def test_after_an_outage_the_fleet_goes_on(start: Start, forget: bool) -> None:
    fleet = start(quorum=2)
    a, b = fleet.device("a"), fleet.device("b")
    for device in (a, b):
        device.birth()
    a.send(a.update())
    fleet.settle()
    fleet.memory.stop(forget=forget)
    fleet.turn(3)
    b.send(b.update())  # waits in its outbox
    fleet.memory.start()
    fleet.settle()
    assert len(fleet.events("connected")) == 2
    assert len(fleet.events("disconnected")) == 1
    assert fleet.shared.round == 1
    state = from_bytes(AggregatorState, fleet.retained(TOPICS.aggregator_state) or b"")
    assert (state.status, state.run) == ("online", "run-1")
    assert [v.nonce for v in b.verdicts() if v.about == "update"] == ["b-0"]


def test_a_broker_that_will_never_let_us_in_is_one_sentence(start: Start) -> None:
    fleet = start()
    fleet.settle()
    other = MemoryTransport(fleet.memory, client_id=TOPICS.client_id("aggregator"))
    with pytest.raises(LinkRefused) as caught:
        fleet.turn()
    assert str(caught.value) == "another client with the id 'greenhouse:aggregator' connected."
    other.close()


def test_the_will_says_that_the_aggregator_is_gone(start: Start) -> None:
    fleet = start()
    fleet.settle()
    fleet.transport.drop()
    state = from_bytes(AggregatorState, fleet.retained(TOPICS.aggregator_state) or b"")
    assert (state.status, state.run) == ("offline", "run-1")
    assert (state.mode, state.exchange, state.merge) == ("sync", "delta", "mean")


# --- the end, and after it -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_end_is_retained_on_the_broker(start: Start, mode: str) -> None:
    fleet = start(mode, rounds=1)
    a = fleet.device("a")
    a.birth()
    a.send(a.update())
    fleet.aggregator.run()
    assert (fleet.shared.round, fleet.shared.last) == (1, True)
    np.testing.assert_array_equal(fleet.shared.tensors["stem/bias"], 1)
    state = from_bytes(AggregatorState, fleet.retained(TOPICS.aggregator_state) or b"")
    assert (state.status, state.mode, state.exchange, state.merge) == (
        "finished", mode, "delta", "mean",
    )  # fmt: skip
    assert fleet.journal == b""
    before = frozen(fleet.aggregator.state)
    fleet.end()

    fleet.memory.stop(forget=True)  # a broker that has forgotten everything
    fleet.memory.start()
    again = start(mode, rounds=1, memory=fleet.memory)
    again.aggregator.run()
    assert (again.shared.round, again.shared.last, again.shared.run) == (1, True, "run-1")
    assert frozen(again.aggregator.state) == before
    assert again.events("finished")


def test_stopping_says_so(start: Start) -> None:
    fleet = start()
    fleet.settle()
    fleet.aggregator.stop()
    fleet.aggregator.run()
    state = from_bytes(AggregatorState, fleet.retained(TOPICS.aggregator_state) or b"")
    assert state.status == "offline"
    assert not fleet.shared.last


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_after_a_kill_the_same_run_goes_on(start: Start, mode: str) -> None:
    fleet = start(mode, quorum=2)
    a, b = fleet.device("a"), fleet.device("b", WHOLE)
    for device in (a, b):
        device.birth()
    for seed, device in enumerate((a, b)):
        device.send(device.update(tensors=draw(seed, device.shared), samples=seed + 1))
    fleet.settle()
    round = fleet.aggregator.state.round
    a.send(a.update(round, tensors=draw(5, STEM)))
    fleet.settle()
    before = frozen(fleet.aggregator.state)
    assert fleet.journal, "the open round is in the journal"
    fleet.end()

    again = start(mode, quorum=2, memory=fleet.memory)
    assert frozen(again.aggregator.state) == before
    assert again.events("replayed")
    a.verdicts()
    a.send(a.update(round, tensors=draw(5, STEM)))  # it missed the verdict
    again.settle()
    assert [v.accepted for v in a.verdicts() if v.about == "update"] == [True]
    assert again.aggregator.counters.updates_duplicate == 1
    assert frozen(again.aggregator.state) == before
    if mode == "sync":
        b.send(b.update(round, tensors=draw(6, WHOLE)))
        again.settle()
        expected = np.mean([draw(5)["stem/bias"], draw(6)["stem/bias"]], axis=0)
        moved = again.shared.tensors["stem/bias"] - np.frombuffer(before[3]["stem/bias"], "f4")
        np.testing.assert_allclose(moved, expected, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["momentum:0.5", "adam:0.01"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_after_any_kill_the_slots_are_as_if_there_had_been_none(
    start: Start, mode: str, optimizer: str
) -> None:
    """Devices send six updates each; b alone has the tail, and sends it in every second round."""

    def live(killed: bool) -> tuple[Any, ...]:
        how = {"mode": mode, "optimizer": optimizer, "quorum": 2}
        fleet = start(folder=f"killed-{killed}", **how)
        a, b = fleet.device("a"), fleet.device("b", WHOLE)
        for turn in range(6):
            b.shared = STEM if turn % 2 else WHOLE
            for seed, device in enumerate((a, b)):
                sent = draw(2 * turn + seed, device.shared)
                device.send(device.update(fleet.aggregator.state.round, tensors=sent))
                fleet.settle()
                if killed:
                    fleet.end()
                    fleet = start(folder=f"killed-{killed}", memory=fleet.memory, **how)
        return frozen(fleet.aggregator.state)

    uninterrupted = live(killed=False)
    assert uninterrupted[1] == (6 if mode == "sync" else 12)
    assert np.frombuffer(uninterrupted[3]["tail/kernel/v"], "f4").any()
    if optimizer.startswith("adam"):
        rounds = np.frombuffer(uninterrupted[3]["tail/kernel/t"], np.int64)
        assert rounds.tolist() == [3]
    assert live(killed=True) == uninterrupted


@pytest.mark.parametrize(
    ("mode", "before", "after", "said"),
    [
        ("sync", None, "momentum:0.5", "its optimizer is 'Delta', not 'Momentum'"),
        ("sync", "momentum:0.5", None, "its optimizer is 'Momentum', not 'Delta'"),
        ("async", "adam:0.1", "sgd:1", "its optimizer is 'Adam', not 'SGD'"),
        ("async", "momentum:0.5", "momentum:0.9", "its merging is '"),
    ],
)
def test_a_state_of_another_optimizer_is_refused(
    start: Start, mode: str, before: str | None, after: str | None, said: str
) -> None:
    start(mode, optimizer=before).end()
    with pytest.raises(StoreError) as caught:
        start(mode, optimizer=after)
    assert said in str(caught.value)
    assert str(caught.value).endswith("; give another --state.")


def test_a_synchronous_fleet_may_go_on_with_another_beta(start: Start) -> None:
    """A round is merged as it closes, here with v = 0.25·1 + 1."""
    fleet = start(optimizer="momentum:0.5")
    a = fleet.device("a")
    a.send(a.update(0))
    fleet.settle()
    fleet.end()
    again = start(optimizer="momentum:0.25", memory=fleet.memory)
    a.send(a.update(1))
    again.settle()
    np.testing.assert_array_equal(again.shared.tensors["stem/bias"], 1 + 1.25)


@pytest.mark.parametrize("encoding", ["float16", "int8", "int4"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_quantised_updates_are_kept_as_they_came(start: Start, mode: str, encoding: str) -> None:
    """The journal holds the codes; after a kill they give the same state."""
    fleet = start(mode, quorum=2)
    device = fleet.device("a", WHOLE)
    tensors = encode_tensors(draw(3), encoding, np.random.default_rng(0), everything=True)
    sent = device.update(encoding=encoding, tensors=tensors)
    device.send(sent)
    fleet.settle()
    assert to_bytes(sent) in fleet.journal
    before = frozen(fleet.aggregator.state)
    fleet.end()
    again = start(mode, quorum=2, memory=fleet.memory)
    assert again.events("replayed")
    assert frozen(again.aggregator.state) == before
    if mode == "sync":
        other = again.device("b", WHOLE)
        other.send(other.update(tensors=ones(0.0, WHOLE)))
        again.settle()
    decoded = decode_tensors(tensors, encoding, {t.name: t.shape for t in WHOLE.tensors})
    factor = 0.5 if mode == "sync" else 1.0
    for name, value in again.aggregator.state.shared.items():
        np.testing.assert_allclose(value, factor * decoded[name], rtol=1e-6)


def test_a_journal_of_another_version_is_one_sentence(start: Start) -> None:
    fleet = start(quorum=2)
    device = fleet.device("a")
    old = decode(to_bytes(device.update()), limit=2**22)
    fields = {name: value for name, value in old.fields.items() if name != "e"}
    fleet.store.append(encode("update", fields, old.tensors))
    fleet.store.commit()
    fleet.end()
    with pytest.raises(StoreError, match=r"^the journal was written by another version\.$"):
        start(quorum=2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"round": -1}, "was written by another version."),
        ({"round": 7}, "does not fit its snapshot: the update is for round 7; this is 0."),
        ({"samples": 0}, "was written by another version."),
        ({"run": "another"}, "was written by another version."),
        ({"tensors": {}}, "was written by another version."),
    ],
    ids=["no round", "a later round", "samples", "run", "tensors"],
)
def test_a_journal_with_what_could_not_have_been_accepted_is_one_sentence(
    start: Start, change: dict[str, Any], said: str
) -> None:
    fleet = start(quorum=2)
    device = fleet.device("a")
    fleet.store.append(to_bytes(replace(device.update(), **change)))
    fleet.store.commit()
    fleet.end()
    with pytest.raises(StoreError, match=f"^the journal {re.escape(said)}$"):
        start(quorum=2)


def test_theta_is_sent_as_float16_and_kept_as_float32(start: Start) -> None:
    third = ones(1 / 3, WHOLE) | {"stem/bias": ones(1e6, WHOLE)["stem/bias"]}
    fleet = start(state=State("run-1", 0, third, {}), downlink="float16")
    fleet.settle()
    for name, sent in fleet.shared.tensors.items():
        nearest = np.float16(65504 if name == "stem/bias" else 1 / 3)
        assert sent.dtype == np.float16 and np.all(sent == nearest)
    assert np.all(fleet.aggregator.state.shared["stem/bias"] == 1e6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_fleet_may_be_ended_by_fewer_rounds(start: Start, mode: str) -> None:
    """Started again with fewer rounds than there were, it finishes and loses nothing."""
    fleet = start(mode, quorum=2 if mode == "sync" else 1)
    a, b = fleet.device("a"), fleet.device("b")
    for round in range(2):
        a.send(a.update(round))
        b.send(b.update(round))
        fleet.settle()
    a.send(a.update(fleet.aggregator.state.round))
    fleet.settle()
    assert fleet.journal
    before = frozen(fleet.aggregator.state)
    fleet.end()
    again = start(mode, rounds=1, memory=fleet.memory)
    again.aggregator.run()
    assert again.shared.last
    assert frozen(again.aggregator.state)[3] == before[3]


# --- against a plain replay ----------------------------------------------------------------------


def plain_replay(
    mode: str, merge: str, heard: Sequence[tuple[str, bytes]]
) -> dict[str, np.ndarray[Any, Any]]:
    """θ from the recorded updates and verdicts alone, in float64, one device after another."""
    accepted: list[Update] = []
    sent: dict[str, Update] = {}
    for topic, payload in heard:
        if topic.endswith("/update"):
            update = from_bytes(Update, payload, limit=2**22)
            sent[update.nonce] = update
        elif topic.endswith("/verdict"):
            verdict = from_bytes(Verdict, payload)
            if verdict.accepted and verdict.about == "update" and verdict.nonce in sent:
                accepted.append(sent.pop(verdict.nonce))  # a second verdict is of a duplicate
    theta = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    if mode == "sync":
        for round in sorted({update.round for update in accepted}):
            of_round = [update for update in accepted if update.round == round]
            for name in SHAPES:
                held = [(u.tensors[name], u.samples) for u in of_round if name in u.tensors]
                weights = [samples if merge == "samples" else 1 for _, samples in held]
                total = sum(w * t.astype(float) for w, (t, _) in zip(weights, held, strict=True))
                if held:
                    theta[name] = theta[name] + total / (1 if merge == "sum" else sum(weights))
        return theta
    newest: dict[str, Update] = {}
    for number, update in enumerate(accepted):
        newest[update.device] = update
        for name, tensor in update.tensors.items():
            holders = [u for u in newest.values() if name in u.tensors]
            share = {
                "sum": 1.0,
                "mean": 1 / len(holders),
                "samples": update.samples / sum(u.samples for u in holders),
            }[merge]
            w = 1 / math.sqrt(1 + number - update.round)
            theta[name] = theta[name] + w * share * tensor.astype(float)
    return theta


@pytest.mark.parametrize("merge", ["sum", "mean", "samples"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_theta_equals_a_plain_replay_of_the_recorded_updates(
    start: Start, mode: str, merge: str
) -> None:
    rng = np.random.default_rng(7)
    settings = {"staleness": "polynomial", "quorum": 2}
    fleet = start(mode, merge, **settings)
    spy = fleet.spy()
    heard = []
    devices = [fleet.device(f"d{k}", (STEM, WHOLE)[k % 2]) for k in range(4)]
    for device in devices:
        device.birth()
    fleet.settle()
    for step in range(120):
        device = devices[rng.integers(4)]
        current = fleet.aggregator.state.round
        age = int(rng.choice([0, 0, 0, 1, 2]))
        sent = device.update(
            max(0, current - age),
            nonce=f"n{step}",
            tensors=draw(step, device.shared),
            samples=int(rng.integers(1, 1000)),
        )
        for _ in range(rng.choice([1, 1, 2])):
            device.send(sent)
        if rng.random() < 0.2:
            device.transport.drop()
            device.transport.reconnect()
            device.birth()
        if rng.random() < 0.05:
            fleet.end()
            fleet = start(mode, merge, memory=fleet.memory, **settings)
        if rng.random() < 0.05:
            fleet.memory.stop()
            fleet.memory.start()
        fleet.settle()
        heard += spy.hear()
    state = fleet.aggregator.state
    if mode == "sync":  # the open round is not merged yet
        heard = [
            (topic, payload)
            for topic, payload in heard
            if not topic.endswith("/update")
            or from_bytes(Update, payload, limit=2**22).round < state.round
        ]
    expected = plain_replay(mode, merge, heard)
    assert state.round >= 8
    for name, value in state.shared.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)
