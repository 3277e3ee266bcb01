"""An agent and an aggregator on one broker in memory, with the real digits bundle.

One thread runs both: where the agent would wait, the aggregator does one step, and a clock moves.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.service import Aggregator
from broker.aggregator.signing import Signing
from broker.aggregator.slice_file import read_slice
from broker.aggregator.storage.store import Identity, Store
from broker.log import Log
from broker.merging.coordinator import Entry, Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import SGD, Delta
from broker.protocol.messages import (
    DeviceState,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.quantisation import decode_tensors
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import Topics
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Event, Packet, Will
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.agent import Agent
from firmware_sim.device.build import make_agent, make_rounds
from firmware_sim.device.make_task import TaskOptions, make_task
from firmware_sim.errors import Stopped
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from firmware_sim.training.rounds import Plan, Rounds

TOPICS = Topics("greenhouse")
LIMIT = 2**22  # bytes
STEPS, RATE = 3, 0.05
RESEND = 10.0  # seconds
PATIENCE = 500  # looks without any event


class Unhurried(MemoryTransport):
    """Moves the world's clock where it would have to wait."""

    world: World

    def receive(self, timeout: float) -> Event | None:
        event = super().receive(0.0)
        if event is None:
            self.world.now += timeout
        return event


class Driven(MemoryTransport):
    """Lets the world go on where it would have to wait; may lose what `loses` says."""

    world: World
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

    def run(self) -> dict[str, float]:
        return self.agent.run()

    def run_until_stopped(self) -> None:
        with pytest.raises(Stopped):
            self.agent.run()
        self.agent.leave()
        self.agent.close()


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
    at_turn: Callable[[World], None] = lambda world: None
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
        signing: Signing | None = None,
        members: Sequence[str] | None = None,
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
        listed = None
        if members is not None:
            listed = self.folder / "members"
            listed.write_text("\n".join(members), encoding="utf-8")
        spec = AggregatorSpec(
            fleet="greenhouse",
            known=known or found,
            start=start,
            settings=settings,
            folder=self.folder / run,
            exchange=exchange,
            downlink=downlink,
            run=run,
            signing=signing,
            members=listed,
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
            self.end()
        else:
            self.aggregator.poll()

    def end(self) -> None:
        """A kill: the broker sends the will. An aggregator that is finished says so, and leaves."""
        if self.aggregator is not None and self.aggregator.state.round >= self.rounds:
            self.aggregator.run()
        elif self.transport is not None:
            self.transport.drop()
        self.stack.close()
        self.aggregator = self.transport = None

    def device(
        self,
        name: str = "pi-1",
        *,
        clock: Callable[[], float] | None = None,
        encoding: str = "float32",
        key: bytes | None = None,
        guard: bool = False,
        **plan: Any,
    ) -> Device:
        """In a process of its own, so to speak: nothing is shared but its folder."""
        rounds = make_rounds(
            self.bundle,
            make_task("digits", self.bundle, TaskOptions(share=(0, 0.1), seed=3)),
            device=name,
            state=self.folder / name,
            plan=Plan(**{"steps": STEPS, "resend_seconds": RESEND} | plan),
            log=Log(self.log, as_json=True),
            clock=clock or self.clock,
        )

        def open_channel(
            *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
        ) -> Channel:
            transport = Driven(
                self.memory, client_id=client_id, subscriptions=subscriptions, will=will
            )
            transport.world = self
            return Channel(transport, limit=limit, held_limit=limit)

        agent = make_agent(
            name,
            rounds,
            self.bundle.manifest.shared,
            topics=TOPICS,
            open_channel=open_channel,
            limit=LIMIT,
            log=Log(self.log, as_json=True),
            about={"branch": "digits"},
            encoding=encoding,
            key=key,
            guard=guard,
            clock=self.clock,
        )
        return Device(agent, rounds)

    def checkpoint(self, name: str = "pi-1") -> Checkpoint:
        """What a device has left on disk."""
        owned = Checkpoints(self.folder / name, device=name, bundle=self.bundle.model_digest)
        left = owned.load()
        assert left is not None
        return left

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
        shapes = {t.name: t.shape for t in self.bundle.manifest.shared.tensors}
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
            fingerprint=self.bundle.manifest.shared.fingerprint,
            tensors={name: np.zeros_like(value) for name, value in start.items()},
        )
        client.publish(TOPICS.update(other), to_bytes(sent))
        client.close()

    def leave_as(self, other: str) -> None:
        client = MemoryTransport(self.memory, client_id=other)
        gone = to_bytes(DeviceState(device=other, online=False))
        client.publish(TOPICS.state(other), gone, retain=True)
        client.close()


def start_of(bundle: Bundle) -> Tensors:
    return read_slice(bundle.slice)[1]


def frozen(arrays: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def once(when: Callable[[World], bool], act: Callable[[World], None]) -> Callable[[World], None]:
    """Does something at the first turn at which a condition holds."""
    done: list[bool] = []

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
