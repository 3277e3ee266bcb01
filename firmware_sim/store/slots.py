"""What is known of every slot of a store, in memory; pure.

A slot is free, or its example waits for a label, is trained on, or is held out. Arrays are written
whole when they are made, so that their memory does not grow later.
"""

from __future__ import annotations

import numpy as np

from firmware_sim.store.database import Facts
from firmware_sim.store.retention import HELD_OUT_PART, Held
from firmware_sim.tensor_spec import Array

FREE, WAITING, TRAINED, HELD_OUT = range(4)  # the part that a slot belongs to
WAITING_PART = 1 / 4  # of all slots, if examples need labels


class Slots:
    """The part of each slot, and the facts of the example in it."""

    def __init__(self, number: int, *, labelled: bool) -> None:
        """`labelled`: examples have targets, for which some of them wait."""
        self.part = np.full(number, FREE, np.uint8)
        self.count = [number, 0, 0, 0]  # of slots in each part
        self.arrivals = np.full(number, 0, np.int64)
        self.seconds = np.full(number, 0, np.float64)
        self.labels = np.full(number, 0, np.int32)
        self.losses = np.full(number, 0, np.float32)
        waiting = int(WAITING_PART * number) if labelled else 0
        held_out = int(HELD_OUT_PART * (number - waiting))
        trained = number - waiting - held_out
        self.quota = {WAITING: waiting, HELD_OUT: held_out, TRAINED: trained}

    def __len__(self) -> int:
        return len(self.part)

    def put(self, facts: Facts) -> None:
        slot, _, part, arrival, seconds, label, loss = facts
        self._move(slot, part)
        self.arrivals[slot], self.seconds[slot] = arrival, seconds
        self.labels[slot], self.losses[slot] = label, loss

    def free(self, slot: int) -> None:
        self._move(slot, FREE)

    def is_full(self, part: int) -> bool:
        return self.count[part] >= self.quota[part]

    def lowest_free(self) -> int:
        """Returns a free slot; there is one while a part holds less than it may."""
        return int(np.argmax(self.part == FREE))

    def within(self, part: int) -> Array:
        """Returns the slots of a part."""
        return np.flatnonzero(self.part == part)

    def oldest_first(self, part: int) -> Array:
        held = self.within(part)
        return held[np.argsort(self.arrivals[held])]

    def oldest(self, part: int) -> int:
        held = self.within(part)
        return int(held[np.argmin(self.arrivals[held])])

    def facts_of(self, held: Array) -> Held:
        return Held(self.arrivals[held], self.labels[held], self.losses[held])

    def waiting_since_before(self, seconds: float) -> Array:
        return np.flatnonzero((self.part == WAITING) & (self.seconds < seconds))

    def _move(self, slot: int, part: int) -> None:
        self.count[self.part[slot]] -= 1
        self.count[part] += 1
        self.part[slot] = part
