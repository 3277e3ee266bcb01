"""An aggregator's service as a target: both modes are given everything that a stranger says.

It must never raise, θ_shared stays finite and keeps its shapes, rounds never go back, and a restart
from what it has written finds the state that it had. It may end only where states are not signed,
because a newer aggregator seems to have the fleet; then it is started again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.signing import Signing
from broker.errors import Superseded
from broker.log import Log
from broker.merging.coordinator import Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Delta
from broker.protocol.messages import to_bytes
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker
from broker.transport.transport import Will
from toolkit.bench.fuzz import samples
from toolkit.bench.fuzz.parties import frames
from toolkit.bench.fuzz.parties.frames import Step
from toolkit.bench.fuzz.parties.party import DROP, RESTART, WAIT, Lines, NeverWaits, Party
from toolkit.bench.fuzz.samples import FLEET, RUN, SHAPES, SLICE, TOPICS
from toolkit.bench.fuzz.target import Mutate, Target, check

# Name, mode, and whether its messages are signed.
KINDS = (("sync", "sync", False), ("async", "async", False), ("signed", "sync", True))
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
DEVICES = ("pi-1", "pi-2", "pi-3", "\u202e", "x" * 70)
_TOPICS = [
    *(TOPICS.state(device) for device in DEVICES),
    *(TOPICS.update(device) for device in DEVICES),
    *(f"{TOPICS.update(device)}/{part}" for device in DEVICES[:2] for part in (0, 1, 7)),
    TOPICS.aggregator_state,
    TOPICS.shared,
    TOPICS.verdict("pi-1"),
]
_STATE = _TOPICS.index(TOPICS.aggregator_state)


def spec(folder: Path, mode: str, *, signed: bool = False) -> AggregatorSpec:
    """Returns an aggregator of the small fleet, whose rounds close after five seconds."""
    settings = Settings(
        mode=mode,
        merge=MergeRule("samples"),
        optimizer=Delta(),
        quorum=2,
        deadline_seconds=5.0,
    )
    return AggregatorSpec(
        fleet=FLEET,
        known=SLICE,
        start={name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()},
        settings=settings,
        folder=folder,
        run=RUN,
        signing=Signing(_KEY, _KEY.public_key().public_bytes_raw()) if signed else None,
    )


class Service:
    """One aggregator in a state folder, and how it is started again."""

    def __init__(
        self, given: AggregatorSpec, broker: MemoryBroker, clock: Callable[[], float]
    ) -> None:
        self._spec = given
        self._broker = broker
        self._clock = clock
        self.start()

    def start(self) -> None:
        with contextlib.ExitStack() as stack:
            log = Log(Lines(), as_json=True)
            self._aggregator = build_aggregator(
                self._spec, self._open_channel, stack, log=log, clock=self._clock
            )
            self._stack = stack.pop_all()
        self._round = self.state.round

    def _open_channel(
        self, *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel:
        self.transport = NeverWaits(
            self._broker,
            client_id=client_id,
            subscriptions=subscriptions,
            will=will,
        )
        return Channel(self.transport, limit=limit, held_limit=2 * limit)

    @property
    def state(self) -> State:
        return self._aggregator.state

    def poll(self) -> None:
        try:
            self._aggregator.poll()
        except Superseded:
            if self._spec.signing is not None:  # the stranger has no key
                raise
            self.stop()
            self.start()

    def check(self) -> None:
        check(self.state.round >= self._round, "the round has gone back.")
        self._round = self.state.round
        for name, shape in SHAPES.items():
            value = self.state.shared[name]
            good = value.shape == shape and value.dtype == np.float32
            check(good and bool(np.isfinite(value).all()), "the fleet's θ_shared is malformed.")

    def restart(self) -> None:
        """Ends and starts it without a word to anybody; what was promised must be there again."""
        before = self.state
        self.stop()
        self.start()
        check(self.state.round == before.round, "a restart lost rounds.")
        for name, value in before.shared.items():
            same = value.tobytes() == self.state.shared[name].tobytes()
            check(same, "a restart has another θ_shared.")

    def stop(self) -> None:
        self._stack.close()


class AggregatorParty(Party):
    """An aggregator of each kind, each on a broker of its own."""

    topics = _TOPICS

    def begin(self) -> None:
        self.services = [
            Service(
                spec(self.state_folder / name, mode, signed=signed),
                self.add_broker(),
                lambda: self.now,
            )
            for name, mode, signed in KINDS
        ]

    def take(self, step: Step) -> None:
        if step.what == DROP:
            for service in self.services:
                service.transport.drop()
                service.transport.reconnect()
        elif step.what != RESTART:
            self.say(step)
        for service in self.services:
            service.poll()
            if step.what == RESTART:
                service.restart()

    def check(self) -> None:
        for service in self.services:
            service.check()

    def close(self) -> None:
        for service in self.services:
            service.stop()


def _invent(rng: random.Random) -> Step:
    """A message of one of the devices, most often a good one, or an event."""
    device = rng.randrange(len(DEVICES))
    name, odd = DEVICES[device], rng.choice((0.0, 0.0, 0.5))
    match rng.randrange(10):
        case 0:
            return Step(WAIT, bytes(rng.randrange(8)))
        case 1:
            return Step(rng.choice((RESTART, DROP, DROP)))
        case 2 | 3 | 4:
            return Step(device, to_bytes(samples.birth(rng, device=name, odd=odd)))
        case 5:
            return Step(rng.randrange(len(_TOPICS)), to_bytes(samples.shared(rng, odd=odd)))
        case 6:
            return Step(_STATE, to_bytes(samples.state(rng, odd=odd)))
    return Step(len(DEVICES) + device, to_bytes(samples.update(rng, device=name, odd=odd)))


def _seeds() -> list[bytes]:
    """Whole rounds of two devices, and of one that another restart comes to."""
    rng = random.Random(2)
    births = [Step(k, to_bytes(samples.birth(rng, device=DEVICES[k]))) for k in (0, 1)]
    at = len(DEVICES)
    updates = [Step(at + k, to_bytes(samples.update(rng, device=DEVICES[k]))) for k in (0, 1)]
    return [
        frames.join([*births, *updates, Step(WAIT, bytes(6))]),
        frames.join([*births, updates[0], Step(RESTART), updates[1], Step(WAIT, bytes(6))]),
        frames.join([births[0], updates[0], Step(DROP), updates[0], births[0]]),
    ]


def _mutator(_: list[bytes]) -> Mutate:
    return lambda rng, data: frames.mutate(rng, data, _invent)


TARGETS = (
    Target(
        "aggregator",
        "an aggregator's service, synchronous and asynchronous, with a stranger on all topics",
        _seeds,
        AggregatorParty,
        mutator=_mutator,
        share=4,
    ),
)
