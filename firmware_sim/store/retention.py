"""Which examples stay when there is no more room: pure functions.

- newest: the last ones to come.
- reservoir: a uniform sample of all that ever came. The n-th takes the place of each of the
  `capacity` held ones with probability 1 / n (algorithm R).
- balanced: as many of each class as of any other, the newest of each.
- hardest: those with the highest loss; one whose loss is not known counts as the hardest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from firmware_sim.tensor_spec import Array

HELD_OUT_PART = 1 / 8  # of all examples, which are never trained on
_HASHES = 2**64


@dataclass(frozen=True, eq=False)
class Held:
    """The examples of a part that is full; entry i of every array is of the same one."""

    arrivals: Array  # int64: the how-manieth example of all it was
    labels: Array  # int32: its class; 0 where there are none
    losses: Array  # float32: the last one known; inf before


@dataclass(frozen=True)
class Newcomer:
    """An example that asks for a place."""

    arrival: int
    label: int = 0
    loss: float = math.inf
    number: int = 1  # the how-manieth that ever asked for a place in this part


Policy = Callable[[Held, Newcomer, int], int | None]


def newest(held: Held, newcomer: Newcomer, seed: int) -> int | None:
    oldest = int(np.argmin(held.arrivals))
    return oldest if held.arrivals[oldest] < newcomer.arrival else None


def reservoir(held: Held, newcomer: Newcomer, seed: int) -> int | None:
    drawn = int(np.random.default_rng((seed, newcomer.number)).integers(newcomer.number))
    return drawn if drawn < len(held.arrivals) else None


def balanced(held: Held, newcomer: Newcomer, seed: int) -> int | None:
    counts = np.bincount(held.labels, minlength=newcomer.label + 1)
    counts[newcomer.label] += 1
    crowded = np.isin(held.labels, np.flatnonzero(counts == counts.max()))
    oldest = int(np.argmin(np.where(crowded, held.arrivals, np.iinfo(np.int64).max)))
    if counts[newcomer.label] == counts.max() and newcomer.arrival < held.arrivals[oldest]:
        return None
    return oldest


def hardest(held: Held, newcomer: Newcomer, seed: int) -> int | None:
    easiest = int(np.argmin(held.losses))
    if held.losses[easiest] < newcomer.loss:
        return easiest
    # Nothing is known of any: the newest stay.
    return newest(held, newcomer, seed) if held.losses[easiest] == newcomer.loss else None


POLICIES: Mapping[str, Policy] = {
    "newest": newest,
    "reservoir": reservoir,
    "balanced": balanced,
    "hardest": hardest,
}


def is_held_out(key: int, seed: int) -> bool:
    """Returns whether the example with this key is for validation only, now and for ever."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_PART * _HASHES
