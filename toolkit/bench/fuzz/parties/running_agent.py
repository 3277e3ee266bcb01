"""An agent in a thread, which runs only while the fuzzer waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from broker.log import Log
from broker.protocol.messages import DeviceState, to_bytes
from broker.protocol.slice import Tensors
from broker.protocol.wire import Array
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker
from broker.transport.transport import Event, Will
from firmware_sim.device.build import make_agent
from firmware_sim.training.checkpoint import Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.bench.fuzz.changes import LARGEST
from toolkit.bench.fuzz.parties.party import Lines, NeverWaits
from toolkit.bench.fuzz.samples import DEVICE, SHAPES, SLICE, TOPICS
from toolkit.bench.fuzz.target import check

BUNDLE = "fuzzed"  # in place of the digest of a model


class _Killed(BaseException):
    """Ends the agent's thread wherever it looks for messages."""


class _Task:
    samples = 10


class _Learner(Learner):
    """Learns the same in every round, and adopts nothing that is malformed."""

    def __init__(self) -> None:
        self.task = _Task()  # type: ignore[assignment]
        self.adopted = 0  # number of times
        self._shared = SLICE
        self._theta = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}

    def adopt(self, tensors: Tensors) -> None:
        for name, shape in SHAPES.items():
            value = tensors[name]
            good = value.shape == shape and value.dtype == np.float32
            check(good and bool(np.isfinite(value).all()), "a malformed θ_shared was adopted.")
        self.adopted += 1
        self._theta = {name: tensors[name] for name in SHAPES}

    def shared(self) -> Tensors:
        return self._theta

    def train(self, steps: int, exchange: str) -> Iterator[float]:
        return iter([0.0] * steps)

    def learnt(self, base: Tensors, exchange: str) -> Tensors:
        return {name: np.full(shape, 0.01, np.float32) for name, shape in SHAPES.items()}

    def evaluate(self) -> dict[str, float]:
        return {"accuracy": 0.5}

    def state(self) -> dict[str, Array]:
        return dict(self._theta)

    def restore(self, state: Mapping[str, Array]) -> None:
        self._theta = {name: state[name] for name in SHAPES}


class _Fed(NeverWaits):
    """The agent's transport: when it has seen that nothing has come, the next step happens."""

    def __init__(self, broker: MemoryBroker, agent: RunningAgent) -> None:
        gone = to_bytes(DeviceState(device=DEVICE, online=False))
        self._agent = agent
        self._empty = False  # as the agent has seen
        super().__init__(
            broker,
            client_id=TOPICS.client_id(DEVICE),
            subscriptions=TOPICS.of_device(DEVICE),
            will=Will(TOPICS.state(DEVICE), gone),
        )

    def receive(self, timeout: float) -> Event | None:
        if self._empty:
            self._agent.wait_for_step()
        event = super().receive(0.0)
        self._empty = event is None
        return event


class RunningAgent:
    """A device in a state folder; `ended` is what it has raised."""

    def __init__(
        self, folder: Path, broker: MemoryBroker, clock: Callable[[], float], key: bytes | None
    ) -> None:
        self._idle, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.ended: BaseException | None = None
        self.running = True
        self.learner = _Learner()
        self.transport = _Fed(broker, self)
        log = Log(Lines(), as_json=True)
        checkpoints = Checkpoints(folder, device=DEVICE, bundle=BUNDLE)
        plan = Plan(steps=2, resend_seconds=5.0)
        self._agent = make_agent(
            DEVICE,
            Rounds(self.learner, checkpoints, plan, log, clock=clock),
            SLICE,
            topics=TOPICS,
            open_channel=lambda **_: Channel(self.transport, limit=LARGEST, held_limit=2 * LARGEST),
            limit=LARGEST,
            log=log,
            encoding="int8",
            key=key,
            clock=clock,
        )
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self._idle.acquire()

    def wait_for_step(self) -> None:
        """Called by the agent."""
        self._idle.release()
        self._go.acquire()
        if self._killed:
            raise _Killed

    def look(self) -> None:
        """Lets the agent take what has come, until it waits for more or has ended."""
        if self.running:
            self._go.release()
            self._idle.acquire()

    def kill(self) -> None:
        self._killed = True
        self.look()
        self._thread.join()
        self.transport.drop()
        self.transport.close()

    def _live(self) -> None:
        try:
            self._agent.run()
        except BaseException as error:
            self.ended = error
        self.running = False
        self._idle.release()
