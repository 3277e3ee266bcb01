"""A device's agent as a target: a stranger speaks as aggregator, broker and other devices.

It must not raise anything but what its program reports in a sentence, may end only because a
message said that it is refused or that the fleet has finished, and must never adopt a θ_shared
that is malformed. An agent that has ended is started again, from its checkpoint.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from broker.errors import WireError
from broker.log import Log
from broker.protocol.messages import DeviceState, Update, Verdict, from_bytes, to_bytes
from broker.protocol.parts import SMALLEST, split
from broker.protocol.slice import Tensors
from broker.protocol.wire import Array
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker
from broker.transport.transport import Event, Packet, Will
from firmware_sim.device.agent import Agent
from firmware_sim.device.compression import Compression
from firmware_sim.errors import FleetRefused
from firmware_sim.training.checkpoint import Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.bench.fuzz import samples
from toolkit.bench.fuzz.changes import LARGEST
from toolkit.bench.fuzz.parties import frames
from toolkit.bench.fuzz.parties.frames import Step
from toolkit.bench.fuzz.parties.party import DROP, RESTART, WAIT, Lines, NeverWaits, Party
from toolkit.bench.fuzz.samples import DEVICE, NONCE, SHAPES, SLICE, TOPICS
from toolkit.bench.fuzz.target import Mutate, Target, check

_LOOK_SECONDS = 0.4  # that pass while the agent looks for a message
_TOPICS = [
    TOPICS.aggregator_state,
    TOPICS.shared,
    TOPICS.reply(DEVICE),
    TOPICS.verdict(DEVICE),
    *(f"{TOPICS.shared}/{part}" for part in (0, 1, 7)),
    f"{TOPICS.reply(DEVICE)}/0",
    TOPICS.verdict("pi-2"),
]
_STATE, _SHARED, _REPLY, _VERDICT, _PARTS = range(5)


class _Killed(BaseException):
    """Ends the agent's thread wherever it looks for messages."""


class _Task:
    samples = 10


class _Learner(Learner):
    """Learns nothing, and adopts nothing that is malformed."""

    def __init__(self) -> None:
        self.task = _Task()  # type: ignore[assignment]
        self._shared = SLICE
        self._theta = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}

    def adopt(self, tensors: Tensors) -> None:
        for name, shape in SHAPES.items():
            value = tensors[name]
            good = value.shape == shape and value.dtype == np.float32
            check(good and bool(np.isfinite(value).all()), "a malformed θ_shared was adopted.")
        self._theta = {name: tensors[name] for name in SHAPES}

    def shared(self) -> Tensors:
        return self._theta

    def train(self, steps: int, exchange: str) -> Iterator[float]:
        return iter([0.0] * steps)

    def learnt(self, base: Tensors, exchange: str) -> Tensors:
        return {name: np.full(shape, 0.01, np.float32) for name, shape in SHAPES.items()}

    def evaluate(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Array]:
        return dict(self._theta)

    def restore(self, state: Mapping[str, Array]) -> None:
        self.adopt(dict(state))


class _Fed(NeverWaits):
    """The agent's transport: when it has seen that nothing has come, the next step happens."""

    def __init__(self, broker: MemoryBroker, agent: _Running) -> None:
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


class _Running:
    """An agent in a thread, which runs only while the fuzzer waits for it."""

    def __init__(self, party: DeviceParty) -> None:
        self._idle, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.ended: BaseException | None = None
        self.running = True
        self.transport = _Fed(party.broker, self)
        log = Log(Lines(), as_json=True)
        checkpoints = Checkpoints(party.state_folder, device=DEVICE, bundle="fuzzed")
        learner = _Learner()
        plan = Plan(steps=2, resend_seconds=5.0)
        self._agent = Agent(
            device=DEVICE,
            shared=SLICE,
            rounds=Rounds(learner, checkpoints, plan, log, clock=lambda: party.now),
            channel=Channel(self.transport, limit=LARGEST, held_limit=2 * LARGEST),
            topics=TOPICS,
            limit=LARGEST,
            log=log,
            about={},
            compression=Compression("int8", checkpoints.residual),
            clock=lambda: party.now,
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


class DeviceParty(Party):
    """One device, and what has been said to it."""

    topics = _TOPICS

    def begin(self) -> None:
        self.broker = self.add_broker()
        self._observer = NeverWaits(
            self.broker, client_id="observer", subscriptions=[TOPICS.update(DEVICE)]
        )
        self._nonce = NONCE.encode()
        self._start()

    def take(self, step: Step) -> None:
        if step.what == RESTART:
            self._start_again()
        elif step.what == DROP:
            self._device.transport.drop()
            self._device.transport.reconnect()
        else:
            step = Step(step.what, step.payload.replace(NONCE.encode(), self._nonce))
            self._refused |= _refuses(step.payload)
            self.say(step)
        self.now += _LOOK_SECONDS
        self._device.look()
        self._observe()
        if not self._device.running:
            error = self._device.ended
            if not (error is None or (isinstance(error, FleetRefused) and self._refused)):
                raise error
            self._start_again()

    def close(self) -> None:
        self._device.kill()

    def _start(self) -> None:
        self._refused = False  # by a message since it was started
        self._device = _Running(self)

    def _start_again(self) -> None:
        self._device.kill()
        self._start()

    def _observe(self) -> None:
        """Takes the nonce of the newest update, so that verdicts can be about it."""
        while (event := self._observer.receive(0.0)) is not None:
            if isinstance(event, Packet):
                self._nonce = from_bytes(Update, event.payload, limit=LARGEST).nonce.encode()


def _refuses(payload: bytes) -> bool:
    try:
        return not from_bytes(Verdict, payload).accepted
    except WireError:
        return False


def _invent(rng: random.Random) -> Step:
    """A message of an aggregator, most often a good one, or an event."""
    odd = rng.choice((0.0, 0.0, 0.5))
    match rng.randrange(10):
        case 0:
            return Step(WAIT, bytes(rng.randrange(8)))
        case 1:
            return Step(rng.choice((RESTART, DROP, DROP)))
        case 2 | 3:
            return Step(_STATE, to_bytes(samples.state(rng, odd=odd)))
        case 4 | 5:
            return Step(_VERDICT, to_bytes(samples.verdict(rng, odd=odd)))
        case 6:
            whole = to_bytes(samples.shared(rng, odd=odd))
            return Step(_PARTS, next(split(whole, SMALLEST)))
    return Step(rng.choice((_SHARED, _REPLY)), to_bytes(samples.shared(rng, odd=odd)))


def _seeds() -> list[bytes]:
    """A device that joins and trains two rounds."""
    rng = random.Random(3)
    shared = samples.shared(rng)
    join = Verdict(device=DEVICE, about="join", run=samples.RUN, accepted=True)
    answer = replace(join, about="update", nonce=NONCE)
    steps = [Step(_STATE, to_bytes(samples.state(rng))), Step(_VERDICT, to_bytes(join))]
    for number in range(2):
        steps.append(Step(_SHARED, to_bytes(replace(shared, round=number))))
        steps.append(Step(_VERDICT, to_bytes(answer)))
    return [frames.join(steps), frames.join([*steps[:3], Step(RESTART), *steps[:4], Step(DROP)])]


def _mutator(_: list[bytes]) -> Mutate:
    return lambda rng, data: frames.mutate(rng, data, _invent)


TARGETS = (
    Target(
        "device",
        "a device's agent, with a stranger who speaks as aggregator and on all other topics",
        _seeds,
        DeviceParty,
        mutator=_mutator,
        share=4,
    ),
)
