"""The agent and an aggregator on one broker in memory, with the real digits bundle.

One thread runs both: wherever the agent would wait, the aggregator takes a turn, and a clock moves.
"""

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.service import Aggregator
from broker.aggregator.slice_file import read_slice
from broker.aggregator.store import Identity, Store
from broker.log import Log
from broker.merging.coordinator import MAX_DEVICES, Entry, Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import SGD, Delta
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.quantisation import decode_tensors
from broker.protocol.slice import SharedTensor, Slice, Tensors
from broker.protocol.topics import Topics
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Event, Packet, Will
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.__main__ import shared_slice
from firmware_sim.device.agent import Agent
from firmware_sim.device.compression import Compression
from firmware_sim.device.make_task import make_task
from firmware_sim.errors import FleetRefused, Stopped
from firmware_sim.tasks.task import TaskOptions
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints, Residual
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from firmware_sim.training.runtime import Model
from tests.harness.metrics import read_metrics

TOPICS = Topics("greenhouse")
LIMIT = 2**22  # bytes
STEPS, RATE = 3, 0.05
RESEND = 10.0  # seconds
PATIENCE = 500  # looks without any event


class Unhurried(MemoryTransport):
    """Moves the world's clock where it would have to wait."""

    world: "World"

    def receive(self, timeout: float) -> Event | None:
        event = super().receive(0.0)
        if event is None:
            self.world.now += timeout
        return event


class Driven(MemoryTransport):
    """Lets the world go on where it would have to wait; may lose what `loses` says."""

    world: "World"
    idle = 0

    def receive(self, timeout: float) -> Event | None:
        event = super().receive(0.0)
        if event is None:
            self.world.turn()
            event = super().receive(0.0)
        if isinstance(event, Packet) and self.world.loses(event):
            return None
        if event is None:
            self.world.now += timeout
            self.idle += 1
            assert self.idle < PATIENCE, "the agent waits for what never comes"
        else:
            self.idle = 0
        return event


@dataclass(frozen=True)
class Device:
    """An agent, and what it is made of."""

    agent: Agent
    rounds: Rounds
    transport: Driven
    residual: Residual
    checkpoints: Checkpoints

    def run(self) -> dict[str, float]:
        return self.agent.run()

    def run_until_stopped(self) -> None:
        with pytest.raises(Stopped):
            self.agent.run()
        self.agent.leave()
        self.transport.close()


@dataclass
class World:
    """One broker, one aggregator at a time, and whatever else happens at each turn."""

    folder: Path
    bundle: Bundle
    memory: MemoryBroker = field(default_factory=MemoryBroker)
    now: float = 0.0
    turns: int = 0
    rounds: int = 0  # after which the aggregator is finished
    aggregator: Aggregator | None = None
    stack: ExitStack = field(default_factory=ExitStack)  # closes the aggregator
    transport: Unhurried | None = None
    at_turn: Callable[["World"], None] = lambda world: None
    loses: Callable[[Packet], bool] = lambda packet: False
    log: io.StringIO = field(default_factory=io.StringIO)
    heard: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spy = MemoryTransport(
            self.memory, client_id="spy", subscriptions=(f"{TOPICS.root}/#",)
        )

    def clock(self) -> float:
        return self.now

    def serve(
        self,
        mode: str = "sync",
        merge: str = "mean",
        *,
        run: str = "run-1",
        exchange: str = "delta",
        known: Slice | None = None,
        ledger: dict[str, Entry] | None = None,
        rounds: int = 3,
        downlink: str = "float32",
        **more: Any,
    ) -> None:
        """Starts an aggregator in place of the one before; another run has a folder of its own."""
        self.end()
        self.rounds = rounds
        optimizer = Delta() if exchange == "delta" else SGD(RATE)
        settings = Settings(
            mode=mode,
            merge=MergeRule(merge),
            optimizer=optimizer,
            rounds=rounds,
            **more,
        )
        found, start = read_slice(self.bundle.slice)
        spec = AggregatorSpec(
            fleet="greenhouse",
            known=known or found,
            start=start,
            settings=settings,
            folder=self.folder / run,
            exchange=exchange,
            downlink=downlink,
            run=run,
        )

        def open_store(folder: Path, identity: Identity) -> Store:
            store = Store(folder, identity)
            if ledger is not None and store.load() is None:
                store.snapshot(State(run, 0, start, optimizer.initial(start), ledger))
            return store

        def open_channel(
            *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
        ) -> Channel:
            self.transport = Unhurried(
                self.memory, client_id=client_id, subscriptions=subscriptions, will=will
            )
            self.transport.world = self
            return Channel(self.transport, limit=LIMIT, held_limit=LIMIT)

        self.aggregator = build_aggregator(
            spec,
            open_channel,
            self.stack,
            log=Log(io.StringIO(), as_json=True),
            open_store=open_store,
            clock=self.clock,
        )

    def turn(self) -> None:
        """As the aggregator's `run` does it."""
        self.turns += 1
        assert self.turns < 5000
        self.at_turn(self)
        if self.aggregator is None:
            self.now += 1.0
        elif self.aggregator.state.round >= self.rounds:
            self.aggregator.run()  # is finished: says so, and is gone
            self.end()
        else:
            self.aggregator.poll()

    def end(self) -> None:
        """A kill: the broker sends the will."""
        if self.transport is not None:
            self.transport.drop()
        self.stack.close()
        self.aggregator = self.transport = None

    def device(
        self,
        name: str = "pi-1",
        *,
        clock: Callable[[], float] | None = None,
        encoding: str = "float32",
        **plan: Any,
    ) -> Device:
        """In a process of its own, so to speak: nothing is shared but its folder."""
        task = make_task("digits", self.bundle, TaskOptions(share=(0, 0.1), seed=3))
        shared = shared_slice(self.bundle)
        learner = Learner(Model(self.bundle.model), task, shared)
        residual = Residual()
        checkpoints = Checkpoints(self.folder / name, device=name, bundle="b", residual=residual)
        log = Log(self.log, as_json=True)
        plan = {"steps": STEPS, "resend_seconds": RESEND} | plan
        rounds = Rounds(learner, checkpoints, Plan(**plan), log, clock=clock or self.clock)
        gone = to_bytes(DeviceState(device=name, online=False))
        transport = Driven(
            self.memory,
            client_id=name,
            subscriptions=TOPICS.of_device(name),
            will=Will(TOPICS.state(name), gone),
        )
        transport.world = self
        agent = Agent(
            device=name,
            shared=shared,
            rounds=rounds,
            channel=Channel(transport, limit=LIMIT, held_limit=LIMIT),
            topics=TOPICS,
            limit=LIMIT,
            log=log,
            about={"branch": "digits"},
            compression=Compression(encoding, residual),
            clock=self.clock,
        )
        return Device(agent, rounds, transport, residual, checkpoints)

    # --- what was said ----------------------------------------------------------------------

    def record(self) -> list[tuple[str, bytes]]:
        while event := self.spy.receive(0.0):
            if isinstance(event, Packet):
                self.heard.append((event.topic, event.payload))
        return self.heard

    def said(self, topic: str) -> list[bytes]:
        return [payload for heard, payload in self.record() if heard == topic]

    def updates(self, name: str = "pi-1") -> list[Update]:
        return [from_bytes(Update, p, limit=LIMIT) for p in self.said(TOPICS.update(name))]

    def decoded(self, name: str = "pi-1") -> list[Tensors]:
        """What the updates stand for."""
        shapes = {t.name: t.shape for t in shared_slice(self.bundle).tensors}
        return [decode_tensors(u.tensors, u.encoding, shapes) for u in self.updates(name)]

    def verdicts(self, name: str = "pi-1") -> list[Verdict]:
        every = [from_bytes(Verdict, payload) for payload in self.said(TOPICS.verdict(name))]
        return [verdict for verdict in every if verdict.about == "update"]

    def final(self) -> Shared:
        shared = from_bytes(Shared, self.said(TOPICS.shared)[-1], limit=LIMIT)
        assert shared.last
        return shared

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]

    def send_nothing_as(self, other: str, round: int, exchange: str = "delta") -> None:
        """An update of zeros by another device, which needs no agent for that."""
        start = read_slice(self.bundle.slice)[1]
        client = MemoryTransport(self.memory, client_id=other)
        sent = Update(
            device=other,
            run="run-1",
            round=round,
            nonce=f"{other}-{round}",
            samples=10,
            exchange=exchange,
            fingerprint=shared_slice(self.bundle).fingerprint,
            tensors={name: np.zeros_like(value) for name, value in start.items()},
        )
        client.publish(TOPICS.update(other), to_bytes(sent))
        client.close()


@pytest.fixture
def world(digits_bundle: Bundle, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, digits_bundle)
    yield made
    made.end()


def start_of(bundle: Bundle) -> Tensors:
    return read_slice(bundle.slice)[1]


def frozen(arrays: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def once(when: Callable[[World], bool], act: Callable[[World], None]) -> Callable[[World], None]:
    """Does something at the first turn at which a condition holds."""
    done = []

    def at_turn(world: World) -> None:
        if not done and when(world):
            done.append(True)
            act(world)

    return at_turn


def plain_replay(
    start: Tensors, updates: Sequence[Update], mode: str, exchange: str
) -> dict[str, Any]:
    """θ after the updates, in float64; of one device, so that every α is 1."""
    theta = {name: value.astype(np.float64) for name, value in start.items()}
    for number, update in enumerate(updates):
        stale = number - update.round
        w = 1 / math.sqrt(1 + stale) if mode == "async" else 1.0
        for name, tensor in update.tensors.items():
            moved = w * tensor.astype(np.float64)
            theta[name] = theta[name] + (moved if exchange == "delta" else -RATE * moved)
    return theta


# --- a whole run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_device_takes_part_until_the_last_round(world: World, mode: str, exchange: str) -> None:
    world.serve(mode, exchange=exchange)
    agent = world.device()
    scores = agent.run()
    updates = world.updates()
    assert [update.round for update in updates] == [0, 1, 2]
    assert {(u.device, u.run, u.exchange, u.samples) for u in updates} == {
        ("pi-1", "run-1", exchange, agent.rounds.learner.task.samples)
    }
    assert len({update.nonce for update in updates}) == 3
    assert all(verdict.accepted for verdict in world.verdicts())
    final = world.final()
    expected = plain_replay(start_of(world.bundle), updates, mode, exchange)
    for name, value in final.tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)
        assert not np.array_equal(value, start_of(world.bundle)[name])
    assert frozen(agent.rounds.learner.shared()) == frozen(dict(final.tensors))
    assert scores == agent.rounds.learner.evaluate()
    assert scores.keys() == {"loss", "accuracy"}


def test_each_round_starts_from_the_fleets_theta(world: World) -> None:
    """Δ of round 1 is what the model learns from θ_1, local layers and optimiser going on."""
    world.serve(rounds=2)
    agent = world.device()
    agent.run()
    first, second = world.updates()
    alone = world.device("alone").rounds.learner
    start = start_of(world.bundle)
    for update in (first, second):
        alone.adopt(start)
        base = alone.shared()
        list(alone.train(STEPS, "delta"))
        learnt = alone.learnt(base, "delta")
        assert frozen(learnt) == frozen(dict(update.tensors))
        start = {name: start[name] + learnt[name] for name in start}


def test_the_device_says_how_it_trains(world: World) -> None:
    world.serve(rounds=2)
    device = world.device()
    scores = device.run()
    values = [read_metrics(payload) for payload in world.said(TOPICS.metrics("pi-1"))]
    assert [value["device_round"] for value in values] == [0, 1, 2]
    assert all(value["device_train_loss"] > 0 for value in values[:2])
    assert values[-1]["device_loss"] == pytest.approx(scores["loss"])
    device.agent.leave()
    assert not from_bytes(DeviceState, world.said(TOPICS.state("pi-1"))[-1]).online


def test_a_device_that_comes_back_to_a_finished_run_gets_its_result(world: World) -> None:
    world.serve(rounds=1)
    world.device().run()
    world.end()
    again = world.device()
    again.run()
    assert len(world.updates()) == 1
    assert frozen(again.rounds.learner.shared()) == frozen(dict(world.final().tensors))


def test_what_a_finished_run_has_left_on_the_broker_ends_nobody_elses_work(world: World) -> None:
    """A newcomer says why it waits, and takes part in the next run."""
    world.serve(rounds=1)
    world.device().run()
    world.end()
    state = AggregatorState(status="finished", run="run-1", mode="sync", exchange="delta")
    world.spy.publish(TOPICS.aggregator_state, to_bytes(state), retain=True)
    newcomer = world.device("pi-2")
    world.at_turn = once(
        lambda world: bool(world.events("waiting")),
        lambda world: world.serve(run="run-2", rounds=2),
    )
    newcomer.run()
    assert [event["reason"] for event in world.events("waiting")] == [
        "the fleet has finished without this device; waiting for a new run."
    ]
    assert [update.run for update in world.updates("pi-2")] == ["run-2"] * 2


# --- what goes wrong between them ----------------------------------------------------------------


def test_a_missed_round_is_left_behind(world: World) -> None:
    """While it trains round 0, the deadline passes and round 0 is merged without it."""
    world.serve(deadline_seconds=30.0)

    def slow() -> float:
        if not world.updates("pi-2"):
            world.send_nothing_as("pi-2", 0)
            world.now += 31.0
            assert world.aggregator is not None
            while world.aggregator.state.round == 0:
                world.aggregator.poll()
        return world.now

    world.device(clock=slow).run()
    assert [update.round for update in world.updates()] == [0, 1, 2]
    assert [v.accepted for v in world.verdicts()] == [False, True, True]
    assert world.verdicts()[0].reason == "late"
    counted = [u for u in world.updates() if u.round > 0]
    expected = plain_replay(start_of(world.bundle), counted, "sync", "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_lost_verdict_is_asked_for_again_and_counts_once(world: World, mode: str) -> None:
    """The update is sent again under the same nonce; the second device holds the round open."""
    world.serve(mode, "sum", rounds=2, quorum=2 if mode == "sync" else 1)
    lost: list[Packet] = []

    def loses(packet: Packet) -> bool:
        about = packet.topic == TOPICS.verdict("pi-1") and b'about\\":\\"update' in packet.payload
        if about and not lost:
            lost.append(packet)
            return True
        return False

    def others(world: World) -> None:
        current = world.aggregator.state.round if world.aggregator else 0
        again = len(world.updates()) >= 2 and current == len(world.updates("pi-2")) < 2
        if mode == "sync" and again:
            world.send_nothing_as("pi-2", current)

    world.loses, world.at_turn = loses, others
    world.device().run()
    updates = world.updates()
    assert lost
    assert [update.round for update in updates] == [0, 0, 1]
    assert updates[0].nonce == updates[1].nonce != updates[2].nonce
    assert [event["round"] for event in world.events("resending")] == [0]
    assert [v.accepted for v in world.verdicts()] == [True, True, True]
    expected = plain_replay(start_of(world.bundle), updates[1:], mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("forget", [False, True], ids=["with persistence", "without"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_outage_of_the_broker_is_survived(world: World, mode: str, forget: bool) -> None:
    world.serve(mode)

    def outage(world: World) -> None:
        world.memory.stop(forget=forget)
        world.memory.start()

    world.at_turn = once(lambda world: len(world.updates()) == 2, outage)
    agent = world.device()
    agent.run()
    assert len(world.events("connected")) == 2
    assert len(world.events("disconnected")) == 1
    rounds = [update.round for update in world.updates()]
    assert sorted({*rounds}) == [0, 1, 2]
    unique = list({update.nonce: update for update in world.updates()}.values())
    assert len(unique) == 3
    expected = plain_replay(start_of(world.bundle), unique, mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_aggregator_that_is_killed_goes_on_with_the_same_run(world: World, mode: str) -> None:
    world.serve(mode)
    world.at_turn = once(lambda world: len(world.updates()) == 2, lambda world: world.serve(mode))
    world.device().run()
    unique = {update.nonce: update for update in world.updates()}
    assert [update.round for update in unique.values()] == [0, 1, 2]
    assert world.final().run == "run-1"
    expected = plain_replay(start_of(world.bundle), list(unique.values()), mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_new_run_of_the_aggregator_is_followed(world: World, mode: str) -> None:
    """The aggregator has lost its folder in the middle, and starts a run of its own."""
    world.serve(mode)
    world.at_turn = once(
        lambda world: len(world.updates()) == 2,
        lambda world: world.serve(mode, run="run-2", rounds=2),
    )
    world.device().run()
    unique = list({update.nonce: update for update in world.updates()}.values())
    assert [(u.run, u.round) for u in unique] == [
        ("run-1", 0), ("run-1", 1), ("run-2", 0), ("run-2", 1),
    ]  # fmt: skip
    assert (world.final().run, world.final().round) == ("run-2", 2)
    expected = plain_replay(start_of(world.bundle), unique[2:], mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


# --- refusals ------------------------------------------------------------------------------------


def test_a_refused_birth_is_one_sentence(world: World) -> None:
    known, _ = read_slice(world.bundle.slice)
    first, *others = known.tensors
    wider = SharedTensor.of(first.name, (*first.shape, 2), first.dtype, first.role)
    world.serve(known=Slice.of((wider, *others)))
    with pytest.raises(FleetRefused) as caught:
        world.device().run()
    assert str(caught.value) == (
        f"the aggregator refused this device: tensor {first.name!r} has shape {first.shape} on "
        f"the device and {wider.shape} in the fleet."
    )
    assert world.updates() == []


def test_a_refusal_by_an_older_run_is_no_refusal(world: World) -> None:
    """It waited on the broker for a device that has been given the right bundle since."""
    old = Verdict(device="pi-1", about="join", run="run-0", accepted=False, text="no.")
    agent = world.device()
    world.spy.publish(TOPICS.verdict("pi-1"), to_bytes(old))
    world.serve(rounds=1)
    agent.run()
    assert len(world.updates()) == 1


def test_an_update_that_would_be_refused_for_ever_is_one_sentence(world: World) -> None:
    full = {f"d{k}": Entry(0, "old", 1, ()) for k in range(MAX_DEVICES)}
    world.serve(ledger=full, quorum=2)
    with pytest.raises(FleetRefused) as caught:
        world.device().run()
    assert str(caught.value) == (
        "the aggregator refused an update: the fleet has its 10000 devices."
    )


def test_a_theta_that_does_not_fit_is_one_sentence(world: World) -> None:
    state = AggregatorState(status="finished", run="run-9", mode="sync", exchange="delta")
    shared = Shared(run="run-9", round=1, fingerprint="f", last=True, tensors={})
    world.spy.publish(TOPICS.aggregator_state, to_bytes(state), retain=True)
    world.spy.publish(TOPICS.shared, to_bytes(shared), retain=True)
    joined = Verdict(device="pi-1", about="join", run="run-9", accepted=True)
    world.spy.publish(TOPICS.verdict("pi-1"), to_bytes(joined), retain=True)
    with pytest.raises(FleetRefused, match=r"^the fleet's θ_shared does not fit this bundle\.$"):
        world.device().run()


def test_garbage_from_the_broker_is_ignored(world: World) -> None:
    world.serve(rounds=1)
    for topic in (TOPICS.shared, TOPICS.verdict("pi-1"), TOPICS.aggregator_state):
        world.spy.publish(topic, b"garbage", retain=True)
    world.device().run()
    assert len(world.updates()) == 1
    assert world.events("ignored")


def test_another_client_with_the_same_name_is_one_sentence(world: World) -> None:
    world.serve()
    taken: list[MemoryTransport] = []
    world.at_turn = once(
        lambda world: len(world.updates()) == 1,
        lambda world: taken.append(MemoryTransport(world.memory, client_id="pi-1")),
    )
    with pytest.raises(FleetRefused) as caught:
        world.device().run()
    assert str(caught.value) == "another client with the id 'pi-1' connected."
    taken[0].close()


# --- stopped and started again -------------------------------------------------------------------


def straight(
    world: World, mode: str, exchange: str, encoding: str = "float32"
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """θ and the whole learner after a run that nobody interrupted."""
    other = World(world.folder / "straight", world.bundle)
    other.serve(mode, exchange=exchange)
    agent = other.device(encoding=encoding)
    agent.run()
    other.end()
    return frozen(dict(other.final().tensors)), frozen(agent.rounds.learner.state())


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("reading", [3, 4, 8], ids=["at a step", "at the last step", "next round"])
def test_a_stopped_device_goes_on_as_if_nothing_had_happened(
    world: World, mode: str, exchange: str, reading: int
) -> None:
    """The clock of a round is read at its start, after each of 3 steps, and at its end."""
    expected = straight(world, mode, exchange)
    world.serve(mode, exchange=exchange)
    readings = iter(range(1, 10**6))

    def clock() -> float:
        if next(readings) == reading:
            first.rounds.stop()
        return world.now

    first = world.device(clock=clock)
    first.run_until_stopped()
    second = world.device()
    second.run()
    nonces = {update.nonce for update in world.updates()}
    assert len(nonces) == 3, "no round was trained twice"
    state = frozen(second.rounds.learner.state())
    assert (frozen(dict(world.final().tensors)), state) == expected


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_update_that_was_trained_is_delivered_after_a_restart(world: World, mode: str) -> None:
    """Stopped while it waits for the verdict, which the link has lost."""
    expected, _ = straight(world, mode, "delta")
    world.serve(mode)
    first = world.device()
    world.loses = lambda packet: bool(world.updates())  # the link brings nothing more
    world.at_turn = once(lambda world: bool(world.updates()), lambda world: first.rounds.stop())
    first.run_until_stopped()
    world.loses = lambda packet: False
    second = world.device()
    second.run()
    updates = world.updates()
    assert updates[0].nonce == updates[1].nonce
    assert [update.round for update in updates] == [0, 0, 1, 2]
    assert frozen(dict(world.final().tensors)) == expected


def stopped_in_round_0_and_left_behind(world: World, exchange: str) -> Checkpoint:
    """A device takes one step of round 0 and is away when the others merge it."""
    world.serve("sync", exchange=exchange)

    def clock() -> float:
        first.rounds.stop()
        return world.now

    first = world.device(clock=clock)
    first.run_until_stopped()
    world.send_nothing_as("pi-2", 0, exchange)
    while world.aggregator is not None and world.aggregator.state.round == 0:
        world.turn()
    left = world.device().checkpoints.load()
    assert left is not None
    assert (left.round, left.steps_done) == (0, 1)
    return left


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_a_device_that_was_away_goes_on_with_the_round_that_is_open(
    world: World, exchange: str
) -> None:
    stopped_in_round_0_and_left_behind(world, exchange)
    world.device().run()
    updates = world.updates()
    assert [update.round for update in updates] == [1, 2]
    expected = plain_replay(start_of(world.bundle), updates, "sync", exchange)
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_what_was_learnt_for_a_lost_round_is_not_sent_in_another(
    world: World, exchange: str
) -> None:
    """θ_local keeps what it learnt from it; an update holds the steps of its own round."""
    left = stopped_in_round_0_and_left_behind(world, exchange)
    world.device().run()
    alone = world.device("alone").rounds.learner
    alone.restore(left.learner)
    alone.learnt(left.base, exchange)  # and thrown away
    alone.adopt(start_of(world.bundle))  # to which the others added nothing
    base = alone.shared()
    list(alone.train(STEPS, exchange))
    assert frozen(alone.learnt(base, exchange)) == frozen(dict(world.updates()[0].tensors))


def test_the_link_may_come_late(world: World) -> None:
    world.memory.stop()
    world.serve(rounds=1)
    world.at_turn = once(lambda world: world.turns == 5, lambda world: world.memory.start())
    world.device().run()
    assert len(world.updates()) == 1


# --- quantised updates and θ ---------------------------------------------------------------------

lossy = pytest.mark.parametrize("encoding", ["float16", "int8", "int4"])


@lossy
@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_what_rounding_keeps_back_is_sent_later(world: World, encoding: str, exchange: str) -> None:
    """What was learnt in all is what was sent in all and what is still kept."""
    world.serve(exchange=exchange)
    device = world.device(encoding=encoding)
    learnt: list[Tensors] = []
    ask = device.rounds.learner.learnt
    device.rounds.learner.learnt = (  # type: ignore[method-assign]
        lambda base, exchange: learnt.append(ask(base, exchange)) or learnt[-1]  # type: ignore[func-returns-value]
    )
    device.run()
    assert {update.encoding for update in world.updates()} == {encoding}
    sent = world.decoded()
    assert len(sent) == len(learnt) == 3
    for name, kept in device.residual.tensors.items():
        total = sum(x[name].astype(np.float64) for x in learnt)
        received = sum(x[name].astype(np.float64) for x in sent)
        np.testing.assert_allclose(received + kept, total, rtol=0, atol=1e-6 * np.abs(total).max())
        assert np.any(kept)
        if exchange == "delta":
            moved = world.final().tensors[name] - start_of(world.bundle)[name]
            np.testing.assert_allclose(moved, received, atol=1e-6)


@pytest.mark.parametrize("encoding", ["int8", "int4"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("reading", [4, 8], ids=["at the last step", "next round"])
def test_a_stopped_device_keeps_what_rounding_kept(
    world: World, mode: str, encoding: str, reading: int
) -> None:
    """Stopped with an update unsent, or in the middle of the round after it."""
    expected = straight(world, mode, "delta", encoding)
    world.serve(mode)
    readings = iter(range(1, 10**6))

    def clock() -> float:
        if next(readings) == reading:
            first.rounds.stop()
        return world.now

    first = world.device(clock=clock, encoding=encoding)
    first.run_until_stopped()
    second = world.device(encoding=encoding)
    second.run()
    assert len({update.nonce for update in world.updates()}) == 3
    state = frozen(second.rounds.learner.state())
    assert (frozen(dict(world.final().tensors)), state) == expected


def test_a_late_update_is_lost_and_what_rounding_kept_is_not(world: World) -> None:
    """As in float32: only what was never sent goes into the next update."""
    world.serve(deadline_seconds=30.0)
    kept: list[dict[str, bytes]] = []

    def slow() -> float:
        if not world.updates("pi-2"):
            world.send_nothing_as("pi-2", 0)
            world.now += 31.0
            assert world.aggregator is not None
            while world.aggregator.state.round == 0:
                world.aggregator.poll()
        if world.updates() and not kept:
            kept.append(frozen(device.residual.tensors))
        return world.now

    device = world.device(clock=slow, encoding="int8")
    alone = world.device("alone").rounds.learner
    device.run()
    assert [v.reason for v in world.verdicts()] == ["late", "", ""]
    # The update of round 1 is Q(e + Δ) with the e that round 0 left.
    residual = Residual("run-1", {})
    again = Compression("int8", residual)
    start = start_of(world.bundle)  # to which the other device added nothing
    for number, update in enumerate(world.updates()[:2]):
        alone.adopt(start)
        base = alone.shared()
        list(alone.train(STEPS, "delta"))
        learnt = alone.learnt(base, "delta")
        sent = again.compress(learnt, device="pi-1", round=number, everything=True)
        assert frozen(sent) == frozen(dict(update.tensors))
        if number == 0:
            assert frozen(residual.tensors) == kept[0]


def test_a_new_run_begins_without_what_rounding_kept(world: World) -> None:
    world.serve()
    kept: list[Residual] = []

    def note(base: Tensors, exchange: str) -> Tensors:
        kept.append(Residual(device.residual.run, device.residual.tensors))
        return ask(base, exchange)

    world.at_turn = once(
        lambda world: len(world.updates()) == 2, lambda world: world.serve(run="run-2", rounds=2)
    )
    device = world.device(encoding="int8")
    ask = device.rounds.learner.learnt
    device.rounds.learner.learnt = note  # type: ignore[method-assign]
    device.run()
    assert [(k.run, bool(k.tensors)) for k in kept] == [
        ("run-1", False), ("run-1", True), ("run-2", False), ("run-2", True),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_theta_in_float16_is_the_base_of_what_is_learnt(world: World, mode: str) -> None:
    """Δ counts from the widened θ; the aggregator adds it to its own, which stays float32."""
    world.serve(mode, rounds=2, downlink="float16")
    device = world.device()
    device.run()
    alone = world.device("alone").rounds.learner
    theta = start_of(world.bundle)
    for update in world.updates():
        alone.adopt({name: x.astype(np.float16).astype(np.float32) for name, x in theta.items()})
        base = alone.shared()
        list(alone.train(STEPS, "delta"))
        learnt = alone.learnt(base, "delta")
        assert frozen(learnt) == frozen(dict(update.tensors))
        theta = {name: theta[name] + learnt[name] for name in theta}
    final = world.final()
    assert all(tensor.dtype == np.float16 for tensor in final.tensors.values())
    for name, value in final.tensors.items():
        np.testing.assert_array_equal(value, theta[name].astype(np.float16))
        np.testing.assert_array_equal(device.rounds.learner.shared()[name], value)
    assert any(np.any(theta[name] != final.tensors[name]) for name in theta)
