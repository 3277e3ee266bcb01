"""A sequence of steps in one block of bytes: what a stranger does to a party of a fleet.

    1 byte    what is done: the place of a topic in the target's list, or an event (see the parties)
    2 bytes   number of bytes that follow, little endian
    …         the payload

Any bytes are a sequence: a payload that is cut off ends where the bytes end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.bench.fuzz.changes import change

MOST = 40  # steps of an input that was changed
_LONGEST = 2**16 - 1


@dataclass(frozen=True)
class Step:
    """One thing that happens to a party."""

    what: int
    payload: bytes = b""


def join(steps: Sequence[Step]) -> bytes:
    """Returns the bytes of a sequence."""
    return b"".join(
        bytes([step.what]) + len(payload).to_bytes(2, "little") + payload
        for step in steps
        for payload in (step.payload[:_LONGEST],)
    )


def split(data: bytes) -> list[Step]:
    """Returns the steps in any bytes."""
    steps, at = [], 0
    while at + 3 <= len(data):
        length = int.from_bytes(data[at + 1 : at + 3], "little")
        steps.append(Step(data[at], data[at + 3 : at + 3 + length]))
        at += 3 + length
    return steps


def mutate(rng: random.Random, data: bytes, invent: Callable[[random.Random], Step]) -> bytes:
    """Returns the sequence with one change: in the order, in one payload, or with a new step."""
    steps = split(data)
    at = rng.randrange(len(steps)) if steps else 0
    kind = rng.choice(("invent", "invent", "payload", "payload", "where", "drop", "repeat", "swap"))
    if kind == "invent" or not steps:
        steps.insert(rng.randint(0, len(steps)), invent(rng))
    elif kind == "payload":
        others = [step.payload for step in steps]
        steps[at] = Step(steps[at].what, change(rng, steps[at].payload, others))
    elif kind == "where":
        steps[at] = Step(rng.randrange(256), steps[at].payload)
    elif kind == "drop":
        del steps[at]
    elif kind == "repeat":
        steps.insert(at, steps[at])
    else:
        rng.shuffle(steps)
    return join(steps[:MOST])
