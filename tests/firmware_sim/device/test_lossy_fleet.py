"""A fleet behind links that lose packets ends with the θ_shared that it has without losses.

Real agents, aggregator and memory broker, in threads; only the learner is simulated: it learns the
same change in every round. Every update goes in parts. The simulated seconds pass quickly.
"""

import contextlib
import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.service import Aggregator
from broker.aggregator.slice_file import read_slice
from broker.log import Log
from broker.merging.coordinator import Settings
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Delta
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import Topics
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.simulated_link import SimulatedLink
from broker.transport.transport import Will
from firmware_sim.device.build import make_agent
from firmware_sim.training.checkpoint import Checkpoints
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.bench.simulated_fleet import SimulatedLearner, write_slice

TOPICS = Topics("orchard")
LIMIT = 2**20  # bytes of a message
SHAPES = {"kernel": (60, 50), "bias": (50,)}  # 12 kB in float32: four parts
PATIENCE = 60.0  # seconds until the test gives up
SPEED = 20.0  # simulated seconds in a second


def clock() -> float:
    return SPEED * time.monotonic()


def sleep(seconds: float) -> None:
    time.sleep(seconds / SPEED)


class Device:
    """A real agent behind a lossy link."""

    def __init__(self, broker: MemoryBroker, name: str, shared: Slice, folder: Path) -> None:
        self.learner = SimulatedLearner(shared, seed=int(name))
        self._log = io.StringIO()
        log = Log(self._log, as_json=True)
        self.rounds = Rounds(
            self.learner,
            Checkpoints(folder / name, device=name, bundle="b"),
            Plan(steps=1, resend_seconds=2.0),
            log,
        )

        def open_channel(
            *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
        ) -> Channel:
            inner = MemoryTransport(
                broker, client_id=client_id, subscriptions=subscriptions, will=will
            )
            self.link = SimulatedLink(
                inner,
                bandwidth_kbps=1000,
                latency_seconds=0.02,
                loss=0.1,
                seed=name,
                clock=clock,
                sleep=sleep,
            )
            return Channel(self.link, limit=limit, part_bytes=4096, held_limit=2 * LIMIT)

        self.agent = make_agent(
            name,
            self.rounds,
            shared,
            topics=TOPICS,
            open_channel=open_channel,
            limit=LIMIT,
            log=log,
            clock=clock,
        )

    def events(self, name: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]


@pytest.fixture
def slice_and_start(tmp_path: Path) -> tuple[Slice, Tensors]:
    write_slice(tmp_path / "shared.onnx", SHAPES)
    return read_slice(tmp_path / "shared.onnx")


@contextlib.contextmanager
def aggregating(
    broker: MemoryBroker, shared: Slice, start: Tensors, settings: Settings, folder: Path
) -> Iterator[Aggregator]:
    """An aggregator in a thread of its own, beside the broker: its link is good."""
    spec = AggregatorSpec(
        fleet="orchard",
        known=shared,
        start=start,
        settings=settings,
        folder=folder / "aggregator",
        run="run",
    )

    def open_channel(
        *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel:
        transport = MemoryTransport(
            broker, client_id=client_id, subscriptions=subscriptions, will=will
        )
        return Channel(transport, limit=limit, held_limit=2 * LIMIT)

    with contextlib.ExitStack() as stack:
        aggregator = build_aggregator(spec, open_channel, stack, log=Log(io.StringIO()))
        thread = threading.Thread(target=aggregator.run)
        thread.start()
        try:
            yield aggregator
        finally:
            aggregator.stop()
            thread.join(PATIENCE)


def test_a_tenth_of_the_packets_is_lost_and_nothing_of_what_was_learnt(
    slice_and_start: tuple[Slice, Tensors], tmp_path: Path
) -> None:
    shared, start = slice_and_start
    rounds = 12
    settings = Settings(
        mode="sync", merge=MergeRule("mean"), optimizer=Delta(), quorum=3, rounds=rounds
    )
    broker = MemoryBroker()
    devices = [Device(broker, str(seed), shared, tmp_path) for seed in range(3)]
    with (
        aggregating(broker, shared, start, settings, tmp_path) as aggregator,
        ThreadPoolExecutor(3) as threads,
    ):
        ends = [threads.submit(device.agent.run) for device in devices]
        try:
            for end in ends:
                end.result(PATIENCE)
        finally:
            for device in devices:
                device.rounds.stop()
    lost = [device.link.lost for device in devices]
    assert min(lost) > 0
    assert sum(len(device.events("resending")) for device in devices) > 0
    assert aggregator.state.round == rounds
    assert aggregator.counters.updates_accepted == 3 * rounds
    for name, first in start.items():
        # θ ← θ + mean of the changes, in every round: each update counted once, and none is missing
        changes = [device.learner.change[name].astype(np.float64) for device in devices]
        expected = first + rounds * np.mean(changes, axis=0)
        for device in devices:
            np.testing.assert_allclose(device.learner.adopted[name], expected, atol=1e-4)
