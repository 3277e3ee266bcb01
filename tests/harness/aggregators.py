"""The real aggregator on a broker in memory, with devices that never wait, and its history."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.storage.store import Identity, Store
from broker.log import Log
from broker.merging.asynchronous import Asynchronous
from broker.merging.coordinator import Outcome, Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Adam
from broker.merging.synchronous import Synchronous
from broker.protocol.messages import Shared, Update, Verdict, from_bytes, to_bytes
from broker.protocol.slice import SharedTensor, Slice, Tensors
from broker.protocol.topics import Topics
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Event, Will
from tests.harness.disk_recorder import Recorder

SLICE = Slice.of([SharedTensor.of("kernel", (3,), "float32", "")])
START: Tensors = {"kernel": np.zeros(3, np.float32)}
TOPICS = Topics("greenhouse")
DEVICES = 3
LIMIT = 2**20  # bytes of a message


class Unhurried(MemoryTransport):
    """Never waits."""

    def receive(self, timeout: float) -> Event | None:
        return super().receive(0.0)


class Noted(Channel):
    """Notes what is promised, between the writes before and after it."""

    recorder: Recorder | None = None

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if self.recorder is not None:
            self.recorder.note((topic, payload))
        super().publish(topic, payload, retain=retain)


@dataclass(frozen=True)
class Plan:
    """How a fleet works: its mode, and the updates that its devices send, some at a time."""

    mode: str
    groups: tuple[int, ...]  # numbers of updates that arrive between two commits

    @property
    def settings(self) -> Settings:
        return Settings(
            mode=self.mode,
            merge=MergeRule("samples"),
            optimizer=Adam(0.1),
            quorum=DEVICES,
            deadline_seconds=1e9,
            staleness="none",
        )

    @property
    def total(self) -> int:
        return sum(self.groups)

    @cache  # noqa: B019, plans are few and small
    def payload(self, number: int) -> bytes:
        return to_bytes(self.update(number))

    @cache  # noqa: B019
    def update(self, number: int) -> Update:
        """The devices send in turn; a synchronous round is whole after each has sent."""
        rng = np.random.default_rng(number)
        return Update(
            device=f"pi-{number % DEVICES}",
            run="run-1",
            round=number // DEVICES if self.mode == "sync" else number,
            nonce=f"nonce-{number}",
            samples=10 + number,
            exchange="gradient",
            fingerprint=SLICE.fingerprint,
            tensors={"kernel": rng.normal(size=3).astype(np.float32)},
        )

    def state(self) -> State:
        return State("run-1", 0, dict(START), self.settings.optimizer.initial(START))

    def history(self) -> list[Any]:
        """Where the uninterrupted run is after each event: an update, or the merge of a round."""
        make = Synchronous if self.mode == "sync" else Asynchronous
        ours = make(self.settings, self.state(), 0.0)
        found = [frozen(ours.state)]
        for number in range(self.total):
            assert ours.offer(self.update(number)) is Outcome.ACCEPTED
            found.append(frozen(ours.state))
            if self.mode == "sync" and number % DEVICES == DEVICES - 1:
                assert ours.close(0.0).merged
                found.append(frozen(ours.state))
        return found

    def promised(self, notes: list[Any]) -> int:
        """The first place in the history that keeps what was said so far; -1: nothing was."""
        least = -1
        for topic, payload in notes:
            if topic == "sent":
                continue
            if topic.endswith("/verdict"):
                verdict = from_bytes(Verdict, payload)
                if verdict.accepted:
                    number = int(verdict.nonce.removeprefix("nonce-"))
                    merges = number // DEVICES if self.mode == "sync" else 0
                    least = max(least, number + 1 + merges)
            elif topic == TOPICS.shared:
                merged = from_bytes(Shared, payload, limit=LIMIT).round
                least = max(least, merged * (DEVICES + 1) if self.mode == "sync" else merged)
        return least

    def possible(self, notes: list[Any]) -> int:
        """The last place in the history that the updates sent so far lead to."""
        sent = max((count for topic, count in notes if topic == "sent"), default=0)
        return sent + (sent // DEVICES if self.mode == "sync" else 0)


def frozen(state: State) -> tuple[Any, ...]:
    """All of a state, bit for bit."""
    parts = (state.shared, state.slots)
    arrays = [sorted((name, a.tobytes()) for name, a in part.items()) for part in parts]
    return state.run, state.round, sorted(state.ledger.items()), arrays


class Killed(Exception):
    """The process ended between two lines of code."""


class Remembering(Store):
    """Remembers whether there was nothing to go on from, and can be killed before a commit."""

    is_new = False
    is_doomed = False

    def load(self) -> State | None:
        state = super().load()
        self.is_new = state is None
        return state

    def commit(self) -> None:
        if self.is_doomed and self._journal is not None:
            self._journal._file.close()  # what was written is the kernel's, and not synced
            self._journal = None
            raise Killed
        super().commit()


class Life:
    """One aggregator from its start to a power cut, and the devices that it hears."""

    def __init__(self, plan: Plan, folder: Path, recorder: Recorder | None = None) -> None:
        self.plan = plan
        self.recorder = recorder
        self.log = io.StringIO()
        self._memory = MemoryBroker()
        self._devices = Unhurried(self._memory, client_id="devices")
        spec = AggregatorSpec(
            fleet=TOPICS.fleet,
            known=SLICE,
            start=dict(START),
            settings=plan.settings,
            folder=folder,
            exchange="gradient",
            run="run-1",
        )
        with contextlib.ExitStack() as stack:
            self.aggregator = build_aggregator(
                spec,
                self._connect,
                stack,
                log=Log(self.log, as_json=True),
                open_store=self._open,
                clock=lambda: 0.0,
            )
            self._stack = stack.pop_all()

    def _open(self, folder: Path, identity: Identity) -> Store:
        self._store = Remembering(folder, identity)
        return self._store

    def _connect(
        self, *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel:
        transport = Unhurried(self._memory, client_id=client_id, subscriptions=subscriptions)
        channel = Noted(transport, limit=LIMIT, held_limit=LIMIT)
        channel.recorder = self.recorder
        return channel

    @property
    def is_new(self) -> bool:
        """Whether it began a new run."""
        return self._store.is_new

    @property
    def replayed(self) -> int:
        """Number of updates that the journal held when it started."""
        events = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return sum(e["updates"] for e in events if e["event"] == "replayed")

    def send(self, first: int, count: int) -> None:
        """Devices send their updates `first`, `first` + 1, …, which are handled together."""
        if self.recorder is not None:
            self.recorder.note(("sent", first + count))
        for number in range(first, first + count):
            device = self.plan.update(number).device
            self._devices.publish(TOPICS.update(device), self.plan.payload(number))
        self.aggregator.poll()

    def send_all(self) -> None:
        """Greets the fleet, which sends each update once more, in order and in groups."""
        self.aggregator.poll()
        first = 0
        for count in self.plan.groups:
            self.send(first, count)
            first += count

    def send_some_and_die(self, groups: int) -> None:
        """As `send_all`, but the group after that many is written and never committed."""
        self.aggregator.poll()
        sizes = self.plan.groups
        for number in range(groups):
            self.send(sum(sizes[:number]), sizes[number])
        self._store.is_doomed = True
        with contextlib.suppress(Killed):
            self.send(sum(sizes[:groups]), sizes[groups])

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
