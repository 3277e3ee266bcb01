"""A fleet in one process: real agents and a real aggregator, each in a thread.

Messages go over the transport that `connect` opens: to a broker in memory, or to a real one. The
folders of agents and aggregator have everything that they need to resume after a kill, as on real
machines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.service import Aggregator
from broker.log import Log
from broker.merging.coordinator import Settings
from broker.merging.merge import MergeRule
from broker.merging.optimizers import parse_optimizer
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import Topics
from broker.transport.address import Address
from broker.transport.channel import Channel, OpenChannel
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Transport, Will
from firmware_sim.device.agent import Agent
from firmware_sim.device.build import make_agent
from firmware_sim.errors import Stopped
from firmware_sim.training.rounds import Rounds

NEVER = 1e6  # seconds: nobody is late here, and nothing gets lost
_LIMIT = 64 * 2**20  # bytes of a message


class Connect(Protocol):
    """Opens the connection of one member of the fleet to the broker."""

    def __call__(
        self, *, client_id: str, subscriptions: Sequence[str], will: Will | None
    ) -> Transport: ...


@dataclass(frozen=True, eq=False)
class Member:
    """One device: its rounds, its slice, the encoding of its updates, and its log."""

    name: str
    rounds: Rounds
    shared: Slice
    log: Log
    encoding: str = "float32"


@dataclass(frozen=True, eq=False)
class Fleet:
    """Devices that merge `rounds` times; by default in synchronous rounds, weighted by samples.

    `known` is the union of their slices, and `start` the θ_shared that all begin with.
    """

    name: str
    members: Sequence[Member]
    known: Slice
    start: Tensors
    rounds: int
    folder: Path  # where the aggregator keeps its state
    log: Log
    mode: str = "sync"  # or async: then every update is a merge
    merge: str = "samples"
    optimizer: str | None = None  # as --optimizer of the aggregator; None: deltas are added


def in_memory() -> Connect:
    """Returns connections to a new broker in this process."""
    broker = MemoryBroker()

    def connect(*, client_id: str, subscriptions: Sequence[str], will: Will | None) -> Transport:
        return MemoryTransport(broker, client_id=client_id, subscriptions=subscriptions, will=will)

    return connect


def over_mqtt(address: Address) -> Connect:
    """Returns connections to a real broker."""

    def connect(*, client_id: str, subscriptions: Sequence[str], will: Will | None) -> Transport:
        return MqttTransport(address, client_id=client_id, subscriptions=subscriptions, will=will)

    return connect


def run_fleet(fleet: Fleet, connect: Connect) -> Mapping[str, dict[str, float]]:
    """Returns the scores of all members after the last round; resumes a run that was killed."""
    topics = Topics(fleet.name)
    with contextlib.ExitStack() as stack:
        aggregator = _aggregator(fleet, connect, stack)
        agents = {member.name: _agent(member, topics, connect, stack) for member in fleet.members}
        pool = stack.enter_context(ThreadPoolExecutor(1 + len(agents)))
        stack.enter_context(_stopping(aggregator, fleet.members))
        learning = {name: pool.submit(agent.run) for name, agent in agents.items()}
        running: list[Future[Any]] = [pool.submit(aggregator.run), *learning.values()]
        wait(running, return_when=FIRST_EXCEPTION)
        for done in running:
            failure = done.exception() if done.done() else None
            if failure is not None and not isinstance(failure, Stopped):
                raise failure
        return {name: future.result() for name, future in learning.items()}


@contextlib.contextmanager
def _stopping(aggregator: Aggregator, members: Sequence[Member]) -> Iterator[None]:
    """Stops all threads when the body ends, in whatever way."""
    try:
        yield
    finally:
        aggregator.stop()
        for member in members:
            member.rounds.stop()


def _aggregator(fleet: Fleet, connect: Connect, stack: contextlib.ExitStack) -> Aggregator:
    spec = AggregatorSpec(
        fleet=fleet.name,
        known=fleet.known,
        start=fleet.start,
        settings=Settings(
            mode=fleet.mode,
            merge=MergeRule(fleet.merge),
            optimizer=parse_optimizer(fleet.optimizer, "delta"),
            quorum=len(fleet.members),
            deadline_seconds=NEVER,
            rounds=fleet.rounds,
        ),
        folder=fleet.folder,
        run=fleet.name,
    )
    return build_aggregator(spec, _channels(connect), stack, log=fleet.log)


def _agent(member: Member, topics: Topics, connect: Connect, stack: contextlib.ExitStack) -> Agent:
    agent = make_agent(
        member.name,
        member.rounds,
        member.shared,
        topics=topics,
        open_channel=_channels(connect),
        limit=_LIMIT,
        log=member.log,
        encoding=member.encoding,
    )
    return stack.enter_context(contextlib.closing(agent))


def _channels(connect: Connect) -> OpenChannel:
    def open_channel(
        *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel:
        transport = connect(client_id=client_id, subscriptions=subscriptions, will=will)
        return Channel(transport, limit=limit, held_limit=_LIMIT)

    return open_channel
