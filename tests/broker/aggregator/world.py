"""An aggregator on a broker in memory, its clock, and devices that a test lets speak.

Nothing here waits: the aggregator's transport moves a clock instead, and each `poll` is called.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from broker.aggregator.service import Aggregator
from broker.aggregator.storage.journal import BEGIN
from broker.aggregator.storage.store import Store, journals
from broker.errors import StoreError
from broker.merging.coordinator import Settings, State
from broker.protocol.messages import (
    DeviceState,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.slice import SharedTensor, Slice, Tensors
from broker.protocol.topics import Topics
from broker.transport.channel import Channel, Message
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Event, Will

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
        """The records that the newest snapshot does not cover."""
        found = journals(self.folder)
        return found[max(found)].read_bytes()[BEGIN:]

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]


Start = Callable[..., Fleet]


def frozen(state: State) -> tuple[Any, ...]:
    """All of a state, bit for bit."""
    arrays = {n: a.tobytes() for part in (state.shared, state.slots) for n, a in part.items()}
    return state.run, state.round, copy.deepcopy(state.ledger), arrays


def frozen_after_restart(start: Start, fleet: Fleet) -> tuple[Any, ...]:
    fleet.end()
    mode, merge = fleet.settings.mode, fleet.settings.merge.name
    return frozen(start(mode, merge, memory=fleet.memory).aggregator.state)
