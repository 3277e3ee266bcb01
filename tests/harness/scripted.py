"""Devices in threads: real agents over MQTT whose learner draws every update from a seed.

Only the learner is not real, so that a round takes milliseconds.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.log import Log
from broker.protocol.messages import Update, from_bytes
from broker.protocol.slice import Slice, Tensors
from broker.transport.address import Address
from broker.transport.channel import Channel
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Will
from firmware_sim.device.build import make_agent
from firmware_sim.errors import Stopped
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from firmware_sim.training.rounds import Plan, Rounds
from tests.harness.programs import TOPICS
from tests.harness.waiting import PATIENCE
from tests.harness.watcher import LARGEST


class ScriptedLearner:
    """Learner's methods without a model: every update is drawn from a seed."""

    def __init__(self, shared: Slice, samples: int, seed: int, pace: Callable[[], Any]) -> None:
        self.task = SimpleNamespace(samples=samples)
        self._shapes = {t.name: t.shape for t in shared.tensors}
        self._rng = np.random.default_rng(seed)
        self._pace = pace
        self.theta: Tensors = {}

    def fits(self, tensors: Tensors) -> bool:
        return all(tensors[name].shape == shape for name, shape in self._shapes.items())

    def adopt(self, tensors: Tensors) -> None:
        self.theta = {name: tensors[name] for name in self._shapes}

    def shared(self) -> Tensors:
        return self.theta

    def train(self, steps: int, exchange: str) -> Iterator[float]:
        self._pace()
        yield from [0.0] * steps

    def learnt(self, base: Tensors, exchange: str) -> Tensors:
        draw = self._rng.standard_normal
        return {n: (0.01 * draw(s)).astype(np.float32) for n, s in self._shapes.items()}

    def evaluate(self) -> dict[str, float]:
        return {}

    def state(self) -> Tensors:
        return self.theta

    def restore(self, state: Mapping[str, Any]) -> None:
        self.theta = dict(state)


class RecordingCheckpoints(Checkpoints):
    """Also keeps every update that its device has made, whatever became of it."""

    def __init__(self, folder: Path, device: str) -> None:
        super().__init__(folder, device=device, bundle="scripted")
        self.updates: list[Update] = []

    def save(self, checkpoint: Checkpoint) -> None:
        if checkpoint.outbox:
            self.updates.append(from_bytes(Update, checkpoint.outbox, limit=LARGEST))
        super().save(checkpoint)


class ScriptedDevice:
    """A real agent in a thread of its own."""

    def __init__(
        self,
        name: str,
        shared: Slice,
        *,
        broker: Address,
        folder: Path,
        samples: int = 10,
        seed: int = 0,
        pace: Callable[[], Any] = lambda: None,
        resend_seconds: float = 0.3,
        part_bytes: int = 900_000,
    ) -> None:
        self.name = name
        self.learner = ScriptedLearner(shared, samples, seed, pace)
        self.log = io.StringIO()
        self._checkpoints = RecordingCheckpoints(folder, name)
        log = Log(self.log, as_json=True)
        plan = Plan(steps=1, resend_seconds=resend_seconds)
        self._rounds = Rounds(self.learner, self._checkpoints, plan, log)  # type: ignore[arg-type]

        def open_channel(
            *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
        ) -> Channel:
            transport = MqttTransport(
                broker, client_id=client_id, subscriptions=subscriptions, will=will
            )
            return Channel(transport, limit=limit, part_bytes=part_bytes, held_limit=2 * LARGEST)

        self._agent = make_agent(
            name,
            self._rounds,
            shared,
            topics=TOPICS,
            open_channel=open_channel,
            limit=LARGEST,
            log=log,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._result: Future[dict[str, float]] = self._pool.submit(self._agent.run)

    @property
    def updates(self) -> list[Update]:
        """Every update that it has made, in order."""
        return self._checkpoints.updates

    @property
    def ended(self) -> bool:
        return self._result.done()

    def finish(self) -> None:
        """Waits until it has got the last θ_shared, and raises what went wrong in its thread."""
        try:
            self._result.result(PATIENCE)
        except TimeoutError:
            pytest.fail(f"{self.name} does not finish; it said: {self.log.getvalue()[-2000:]}")

    def close(self) -> None:
        self._rounds.stop()
        if not isinstance(self._result.exception(PATIENCE), Stopped | None):
            sys.stderr.write(self.log.getvalue())
        self._agent.leave()
        self._agent.close()
        self._pool.shutdown()


@pytest.fixture
def scripted(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Callable[..., ScriptedDevice]]:
    """Starts scripted devices: `scripted(name, slice, samples=…, seed=…, pace=…)`."""
    devices: list[ScriptedDevice] = []

    def start(name: str, shared: Slice, **options: Any) -> ScriptedDevice:
        folder = tmp_path / name
        device = ScriptedDevice(name, shared, broker=mosquitto.address, folder=folder, **options)
        devices.append(device)
        return device

    yield start
    for device in devices:
        device.close()
