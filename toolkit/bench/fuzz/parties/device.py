"""A device's agent as a target: a stranger speaks as aggregator, broker and other devices.

It must not raise anything but what its program reports in a sentence, may end only because
messages said that it is refused or that the fleet has finished, and must never adopt a θ_shared
that is malformed. An agent that has ended is started again, from its checkpoint. A second device
has the fleet's key, which the stranger has not: it must never end, adopt or send anything.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.errors import WireError
from broker.protocol.messages import Message, Update, Verdict, from_bytes, to_bytes
from broker.protocol.parts import SMALLEST, split
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Packet
from firmware_sim.errors import FleetRefused
from toolkit.bench.fuzz import samples
from toolkit.bench.fuzz.changes import LARGEST
from toolkit.bench.fuzz.parties import frames
from toolkit.bench.fuzz.parties.frames import Step
from toolkit.bench.fuzz.parties.party import DROP, RESTART, WAIT, NeverWaits, Party, retained
from toolkit.bench.fuzz.parties.running_agent import RunningAgent
from toolkit.bench.fuzz.samples import DEVICE, NONCE, TOPICS
from toolkit.bench.fuzz.target import Mutate, Target, check

_LOOK_SECONDS = 0.4  # that pass while the agent looks for a message
_KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32).public_key().public_bytes_raw()
_STRANGERS_KEY = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
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


class _Member:
    """One device on a broker of its own, and what has been said to it."""

    def __init__(self, party: DeviceParty, folder: Path, key: bytes | None) -> None:
        self._party = party
        self._folder = folder
        self._key = key
        self._broker = MemoryBroker()
        self._stranger = MemoryTransport(self._broker, client_id="stranger")
        self._observer = NeverWaits(
            self._broker, client_id="observer", subscriptions=[TOPICS.update(DEVICE)]
        )
        self._nonce = NONCE.encode()
        self.ends = 0  # number of times that it was refused, or had finished
        self._standing_refusal = False  # retained: the broker repeats it at every start
        self._start()

    def take(self, step: Step) -> None:
        if step.what == RESTART:
            self._start_again()
        elif step.what == DROP:
            self.agent.transport.drop()
            self.agent.transport.reconnect()
        elif step.what != WAIT:
            step = Step(step.what, step.payload.replace(NONCE.encode(), self._nonce))
            self._note_refusal(step)
            self._party.publish(self._stranger, step)
        self.agent.look()
        self._observe()
        if not self.agent.running:
            self._check_end()
            self.ends += 1
            self._start_again()
        check(not (self._key and self.agent.learner.adopted), "an unsigned θ_shared was adopted.")

    def kill(self) -> None:
        self.agent.kill()

    def _start(self) -> None:
        self._refused = self._standing_refusal  # by a message since it was started
        self.agent = RunningAgent(self._folder, self._broker, lambda: self._party.now, self._key)

    def _start_again(self) -> None:
        self.agent.kill()
        self._start()

    def _note_refusal(self, step: Step) -> None:
        refuses = _refuses(step.payload)
        self._refused |= refuses
        if retained(step) and self._party.topic(step) == TOPICS.verdict(DEVICE):
            self._standing_refusal = refuses

    def _check_end(self) -> None:
        error = self.agent.ended
        if error is not None and not (isinstance(error, FleetRefused) and self._refused):
            raise error
        check(self._key is None, "a device ended because of unsigned messages.")

    def _observe(self) -> None:
        """Takes the nonce of the newest update, so that verdicts can be about it."""
        while (event := self._observer.receive(0.0)) is not None:
            if isinstance(event, Packet):
                self._nonce = from_bytes(Update, event.payload, limit=LARGEST).nonce.encode()
                check(self._key is None, "a device sent an update to a fleet without signatures.")


class DeviceParty(Party):
    """A device that believes what is plausible, and one that believes what is signed."""

    topics = _TOPICS

    def begin(self) -> None:
        self.members = [
            _Member(self, self.state_folder / "plain", None),
            _Member(self, self.state_folder / "with key", _KEY),
        ]

    def take(self, step: Step) -> None:
        self.now += _LOOK_SECONDS + (len(step.payload) if step.what == WAIT else 0)
        for member in self.members:
            member.take(step)

    def close(self) -> None:
        for member in self.members:
            member.kill()


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
            return Step(WAIT, bytes(rng.choice((1, 2, 4, 8, 100))))
        case 1:
            return Step(rng.choice((RESTART, DROP, DROP)))
        case 2 | 3:
            return _said(rng, _STATE, samples.state(rng, odd=odd))
        case 4 | 5:
            return _said(rng, _VERDICT, samples.verdict(rng, odd=odd))
        case 6:
            whole = to_bytes(samples.shared(rng, odd=odd))
            return Step(_PARTS, next(split(whole, SMALLEST)))
    return _said(rng, rng.choice((_SHARED, _REPLY)), samples.shared(rng, odd=odd))


def _said(rng: random.Random, place: int, message: Message) -> Step:
    """A message, now and then signed with a key that is not the fleet's: to check it takes long."""
    signer = _STRANGERS_KEY if rng.random() < 0.03 else None
    return Step(place, to_bytes(message, topic=_TOPICS[place], signer=signer))


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
