"""The aggregator over a broker in memory: what it answers, when, and what survives it.

Nothing here waits: the aggregator's transport moves a clock instead, and each `turn` is called.
"""

import contextlib
import copy
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broker.aggregator.service
from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.contract import MAX_SAMPLES
from broker.aggregator.counters import Counters
from broker.aggregator.service import Aggregator
from broker.aggregator.store import Identity, Store
from broker.errors import LinkRefused, StoreError
from broker.log import Log
from broker.merging.coordinator import Entry, Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Delta
from broker.merging.presence import MAX_DEVICES
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    Reason,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.quantisation import decode_tensors, encode_tensors
from broker.protocol.slice import SharedTensor, Slice, Tensors
from broker.protocol.topics import Topics
from broker.protocol.wire import decode, encode
from broker.transport.channel import Channel, Message
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Event, Will
from tests.harness.metrics import read_metrics

SHAPES = {"stem/kernel": (40, 40), "stem/bias": (40,), "tail/kernel": (5, 3)}
WHOLE = Slice.of(SharedTensor.of(name, shape, "float32", "") for name, shape in SHAPES.items())
STEM = Slice.of(WHOLE.tensors[:2])
TOPICS = Topics("greenhouse")
DEADLINE = 10.0  # seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Unhurried(MemoryTransport):
    """Moves a clock where it would have to wait, and knows when nothing more is there."""

    clock = Clock()
    is_idle = False

    def receive(self, timeout: float) -> Event | None:
        event = super().receive(0.0)
        self.is_idle = event is None
        if event is None:
            self.clock.now += timeout
        return event


class Brittle(Store):
    """A disk that fails when it is told to."""

    broken = False

    def commit(self) -> None:
        if self.broken:
            raise StoreError("the disk is full.")
        super().commit()


def channel(transport: MemoryTransport) -> Channel:
    return Channel(transport, limit=2**22, held_limit=2**24)


def draw(seed: int, shared: Slice = WHOLE) -> Tensors:
    rng = np.random.default_rng(seed)
    return {t.name: (0.1 * rng.normal(size=t.shape)).astype(np.float32) for t in shared.tensors}


def ones(value: float, shared: Slice = STEM) -> Tensors:
    return {t.name: np.full(t.shape, value, np.float32) for t in shared.tensors}


class Client:
    """Hears what is said on some topics."""

    def __init__(self, memory: MemoryBroker, name: str, *topics: str) -> None:
        gone = to_bytes(DeviceState(device=name, online=False))
        self.name = name
        self.transport = Unhurried(
            memory, client_id=name, subscriptions=topics, will=Will(TOPICS.state(name), gone)
        )
        self.channel = channel(self.transport)

    def hear(self) -> list[tuple[str, bytes]]:
        """Everything since the last time."""
        heard = []
        self.transport.is_idle = False
        while not self.transport.is_idle:
            match self.channel.receive(0.0):
                case Message(topic, payload):
                    heard.append((topic, payload))
        return heard


class Device(Client):
    """A device that says whatever a test wants it to say."""

    def __init__(self, memory: MemoryBroker, name: str, shared: Slice = STEM) -> None:
        super().__init__(memory, name, *TOPICS.of_device(name))
        self.shared = shared

    def birth(self, **changes: Any) -> None:
        state = replace(DeviceState.birth(self.name, self.shared, {"branch": "small"}), **changes)
        self.channel.publish(TOPICS.state(self.name), to_bytes(state), retain=True)

    def update(self, round: int = 0, **changes: Any) -> Update:
        sent = Update(
            device=self.name,
            run="run-1",
            round=round,
            nonce=f"{self.name}-{round}",
            samples=10,
            exchange="delta",
            fingerprint=self.shared.fingerprint,
            tensors=ones(1.0, self.shared),
        )
        return replace(sent, **changes)

    def send(self, sent: Update | bytes) -> None:
        """Bytes that no device would send go out as they are."""
        if isinstance(sent, bytes):
            self.transport.publish(TOPICS.update(self.name), sent)
        else:
            self.channel.publish(TOPICS.update(self.name), to_bytes(sent))

    def verdicts(self) -> list[Verdict]:
        topic = TOPICS.verdict(self.name)
        return [from_bytes(Verdict, payload) for t, payload in self.hear() if t == topic]


@dataclass
class Fleet:
    """An aggregator put together as its command does it, on a broker in memory."""

    folder: Path
    memory: MemoryBroker
    settings: Settings
    aggregator: Aggregator
    transport: Unhurried
    store: Brittle
    clock: Clock
    log: io.StringIO
    stack: contextlib.ExitStack

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.aggregator.poll()

    def settle(self) -> None:
        """Turns until nothing has arrived that was not handled."""
        self.transport.is_idle = False
        while not self.transport.is_idle:
            self.turn()

    def end(self) -> None:
        """Without a goodbye, as a kill does it."""
        self.transport.drop()
        self.stack.close()

    def device(self, name: str, shared: Slice = STEM) -> Device:
        return Device(self.memory, name, shared)

    def spy(self) -> Client:
        return Client(self.memory, "spy", f"{TOPICS.root}/#")

    def retained(self, topic: str) -> bytes | None:
        """Whole or in parts, as a newcomer would get it."""
        newcomer = Client(self.memory, "newcomer", f"{topic}/#")
        found = newcomer.hear()
        newcomer.transport.close()
        return found[-1][1] if found else None

    @property
    def shared(self) -> Shared:
        payload = self.retained(TOPICS.shared)
        assert payload is not None
        return from_bytes(Shared, payload, limit=2**22)

    @property
    def journal(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.folder.glob("journal-*")))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]


Start = Callable[..., Fleet]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts an aggregator, or starts it again from the folder of another one."""
    stacks: list[contextlib.ExitStack] = []

    def begin(
        mode: str = "sync",
        merge: str = "mean",
        *,
        memory: MemoryBroker | None = None,
        state: State | None = None,
        downlink: str = "float32",
        **more: Any,
    ) -> Fleet:
        memory = memory or MemoryBroker()
        defaults: dict[str, Any] = {"deadline_seconds": DEADLINE, "staleness": "none"}
        settings = Settings(
            mode=mode,
            merge=MergeRule(merge),
            optimizer=Delta(),
            **defaults | more,
        )
        spec = AggregatorSpec(
            fleet="greenhouse",
            known=WHOLE,
            start=ones(0.0, WHOLE),
            settings=settings,
            folder=tmp_path / "state",
            downlink=downlink,
            run="run-1",
        )
        stores: list[Brittle] = []
        transports: list[Unhurried] = []
        clock, log, stack = Clock(), io.StringIO(), contextlib.ExitStack()
        stacks.append(stack)

        def open_store(folder: Path, identity: Identity) -> Brittle:
            store = Brittle(folder, identity)
            if state is not None and store.load() is None:
                store.snapshot(state)
            stores.append(store)
            return store

        def open_channel(
            *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
        ) -> Channel:
            transport = Unhurried(
                memory, client_id=client_id, subscriptions=subscriptions, will=will
            )
            transport.clock = clock
            transports.append(transport)
            return Channel(transport, limit=limit, held_limit=2**24)

        aggregator = build_aggregator(
            spec,
            open_channel,
            stack,
            log=Log(log, as_json=True),
            open_store=open_store,
            clock=clock,
        )
        (store,), (transport,) = stores, transports
        return Fleet(spec.folder, memory, settings, aggregator, transport, store, clock, log, stack)

    yield begin
    for stack in stacks:
        stack.close()


def frozen(state: State) -> tuple[Any, ...]:
    """All of a state, bit for bit."""
    arrays = {n: a.tobytes() for part in (state.shared, state.slots) for n, a in part.items()}
    return state.run, state.round, copy.deepcopy(state.ledger), arrays


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
    size = 8 + len(to_bytes(a.update()))
    monkeypatch.setattr(broker.aggregator.service, "JOURNAL_LIMIT", 3 * size)
    for round in range(4):
        a.send(a.update(round))
        fleet.settle()
        assert len(fleet.journal) == (round + 1) % 4 * size
    assert frozen_after_restart(start, fleet) == frozen(fleet.aggregator.state)


# --- the end, and after it -----------------------------------------------------------------------


def frozen_after_restart(start: Start, fleet: Fleet) -> tuple[Any, ...]:
    fleet.end()
    mode, merge = fleet.settings.mode, fleet.settings.merge.name
    return frozen(start(mode, merge, memory=fleet.memory).aggregator.state)


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
    "change",
    [{"round": -1}, {"round": 7}, {"samples": 0}, {"run": "another"}, {"tensors": {}}],
    ids=lambda change: next(iter(change)),
)
def test_a_journal_with_what_could_not_have_been_accepted_is_one_sentence(
    start: Start, change: dict[str, Any]
) -> None:
    fleet = start(quorum=2)
    device = fleet.device("a")
    fleet.store.append(to_bytes(replace(device.update(), **change)))
    fleet.store.commit()
    fleet.end()
    with pytest.raises(StoreError, match=r"^the journal was written by another version\.$"):
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
