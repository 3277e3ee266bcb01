"""The store: examples come in, wait for their labels, are kept or not, and are drawn to train on.

Every example is in one of three parts, each with a number of slots that is never exceeded: it waits
for its label, it is trained on, or it is held out. Who is held out follows from the key alone, so
an example that is held out is never trained on, whenever it comes.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.errors import StoreError
from firmware_sim.store.database import FILE, Database, Facts
from firmware_sim.store.retention import HELD_OUT_PART, POLICIES, Held, Newcomer, is_held_out
from firmware_sim.store.size import Size
from firmware_sim.store.spec import ExampleSpec
from firmware_sim.tensor_spec import Array

FREE, WAITING, TRAINED, HELD_OUT = range(4)  # the part that a slot belongs to
WAITING_PART = 1 / 4  # of all slots, if examples need labels
_OWN_KEY = re.compile(r"#[1-9][0-9]{0,17}")
_GIVEN = 1 << 62  # from here on: hashes of keys that were given
_ASKED = {TRAINED: "asked_trained", HELD_OUT: "asked_held_out"}
_SHOWN = ("arrivals", "expired", "not_kept", "repeated")


@dataclass(frozen=True)
class Counts:
    """How many examples there are, and what became of the others."""

    waiting: int
    trained: int
    held_out: int
    slots: int
    arrivals: int
    expired: int  # their labels did not come in time, or there was no room to wait
    not_kept: int  # replaced, or refused by the policy
    repeated: int  # came again with a key that was there


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples drawn from the store, and the slots that they are in."""

    x: Array
    y: Array
    slots: Array


class Store:
    """The examples of one device; every method may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        spec: ExampleSpec,
        size: Size,
        *,
        keep: str = "newest",
        seed: int = 0,
        label_seconds: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the store of a state folder, or makes it; `seed` counts when it is made."""
        if keep not in POLICIES:
            raise StoreError(f"examples can be kept as {', '.join(POLICIES)}, not {keep!r}.")
        if keep == "balanced" and not spec.is_one_class:
            raise StoreError("only examples with one class each can be kept balanced.")
        self.spec = spec
        self.keep = keep
        self._policy = POLICIES[keep]
        self._label_seconds = label_seconds
        self._clock = clock
        self._lock = threading.RLock()
        self._counters: dict[str, int] = {}
        self._database = Database(folder / FILE, size)
        try:
            self._seed = self._claim_for(seed, size)
            self._load(size.slots)
            self._trim()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def add(self, x: Any, y: Any = None, key: str = "", *, loss: float = math.inf) -> str:
        """Stores an example and returns its key; a kill after that does not cost it.

        An example whose key is there already is not stored again; it gets its label, if it had
        none. `loss` is that of the model before it has seen the example, if it is known.
        """
        data, labelled = self.spec.pack(x, y), y is not None or self.spec.y is None
        with self._changing() as counters:
            if key and (known := self._database.facts_of(_code(key))):
                counters["repeated"] += 1
                if y is not None and known[2] == WAITING:
                    self._give_label(known, data, loss, counters)
                return key
            counters["arrivals"] += 1
            number = counters["arrivals"]
            code = _code(key) if key else number
            self._expire(counters)
            if labelled:
                part = self._part_of(code)
                newcomer = self._newcomer(part, number, data, loss, counters)
                slot = self._slot_in(part, newcomer, counters)
            else:
                part, newcomer = WAITING, Newcomer(number)
                slot = self._slot_to_wait_in(counters)
            if slot is not None:
                self._put(slot, code, part, newcomer, self._clock())
                self._database.put_content(slot, data)
        return key or f"#{number}"

    def label(self, key: str, y: Any, *, loss: float = math.inf) -> bool:
        """Gives an example its target, or another one; returns False if it is not there any more.

        It is not if its label came too late, or if others have taken its place.
        """
        with self._lock:
            known = self._database.facts_of(_code(key))
            if known is None:
                self.spec.as_y(y)
                return False
            (before,) = self._database.contents(known[:1])
            data = self.spec.with_label(before, y)
            with self._changing() as counters:
                if known[2] == WAITING:
                    self._give_label(known, data, loss, counters)
                else:
                    newcomer = Newcomer(known[3], self.spec.label_of(data), loss)
                    self._put(known[0], known[1], known[2], newcomer, known[4])
                    self._database.put_content(known[0], data)
        return True

    def example(self, key: str) -> Array | None:
        """Returns the input with this key, if it is there."""
        with self._lock:
            known = self._database.facts_of(_code(key))
            return self._batch(known[:1]).x[0] if known else None

    def sample(self, rng: np.random.Generator, size: int) -> Batch:
        """Draws examples to train on, each at most once if there are enough."""
        with self._lock:
            slots = np.flatnonzero(self._part == TRAINED)
            if not len(slots):
                raise StoreError("there are no examples to train on.")
            return self._batch(rng.choice(slots, size, replace=len(slots) < size))

    def held_out(self, size: int) -> Iterator[Batch]:
        """Yields the examples that are held out now, at most `size` at a time."""
        return self.examples(HELD_OUT, size)

    def examples(self, part: int, size: int) -> Iterator[Batch]:
        """Yields the examples that are in a part now, the oldest first, `size` at a time."""
        with self._lock:
            slots = np.flatnonzero(self._part == part)
            slots = slots[np.argsort(self._arrivals[slots])]
        for start in range(0, len(slots), size):
            with self._lock:
                some = slots[start : start + size]
                still = some[self._part[some] == part]  # others may have left meanwhile
                found = self._batch(still) if len(still) else None
            if found is not None:
                yield found

    def set_losses(self, slots: Array, losses: Array) -> None:
        """What the model's losses are on examples that were drawn; `hardest` keeps by them."""
        with self._changing():
            self._losses[slots] = losses
            self._database.set_losses(list(zip(map(float, losses), map(int, slots), strict=True)))

    @property
    def trained(self) -> int:
        """The number of examples to train on."""
        return self._count[TRAINED]

    def counts(self) -> Counts:
        with self._lock:
            said = {name: self._counters[name] for name in _SHOWN}
            return Counts(
                waiting=self._count[WAITING],
                trained=self._count[TRAINED],
                held_out=self._count[HELD_OUT],
                slots=len(self._part),
                **said,
            )

    # --- one change ---------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[dict[str, int]]:
        """One transaction; yields the counters, which are stored with it."""
        with self._lock:
            counters = dict(self._counters)
            try:
                with self._database.change():
                    yield counters
                    self._database.set_counters(counters)
            except BaseException:
                self._load(len(self._part))
                raise
            self._counters = counters

    def _give_label(self, known: Facts, data: bytes, loss: float, counters: dict[str, int]) -> None:
        """An example that waited asks for a place in its part; if it gets one, it stays."""
        slot, code, _, number, seconds, _, _ = known
        part = self._part_of(code)
        newcomer = self._newcomer(part, number, data, loss, counters)
        place = self._slot_in(part, newcomer, counters)
        if place is None:
            self._free([slot])
            return
        if self._part[place] != FREE:
            self._free([place])
        self._put(slot, code, part, newcomer, seconds)
        self._database.put_content(slot, data)

    def _part_of(self, code: int) -> int:
        return HELD_OUT if is_held_out(code, self._seed) else TRAINED

    def _newcomer(
        self, part: int, arrival: int, data: bytes, loss: float, counters: dict[str, int]
    ) -> Newcomer:
        asked = _ASKED[part]
        counters[asked] += 1
        return Newcomer(arrival, self.spec.label_of(data), loss, counters[asked])

    def _slot_in(self, part: int, newcomer: Newcomer, counters: dict[str, int]) -> int | None:
        """Returns a free slot, or that of the one to replace; None if the newcomer is refused."""
        if self._count[part] < self._quota[part]:
            return self._free_slot()
        held = np.flatnonzero(self._part == part)
        counters["not_kept"] += 1
        in_part = Held(self._arrivals[held], self._labels[held], self._losses[held])
        victim = self._policy(in_part, newcomer, self._seed)
        return None if victim is None else int(held[victim])

    def _slot_to_wait_in(self, counters: dict[str, int]) -> int:
        """Returns a free slot, or that of the one that has waited longest, if no more may wait."""
        if self._count[WAITING] < self._quota[WAITING]:
            return self._free_slot()
        counters["expired"] += 1
        waiting = np.flatnonzero(self._part == WAITING)
        return int(waiting[np.argmin(self._arrivals[waiting])])

    def _free_slot(self) -> int:
        """Returns the lowest; a part that holds less than it may leaves one."""
        return int(np.argmax(self._part == FREE))

    def _expire(self, counters: dict[str, int]) -> None:
        if not self._count[WAITING] or self._label_seconds == math.inf:
            return
        limit = self._clock() - self._label_seconds
        overdue = np.flatnonzero((self._part == WAITING) & (self._seconds < limit))
        self._free(overdue.tolist())
        counters["expired"] += len(overdue)

    def _free(self, slots: Sequence[int]) -> None:
        self._database.free(slots)
        for slot in slots:
            self._move(slot, FREE)

    def _put(self, slot: int, code: int, part: int, newcomer: Newcomer, seconds: float) -> None:
        arrival, label, loss = newcomer.arrival, newcomer.label, newcomer.loss
        self._database.put_facts((slot, code, part, arrival, seconds, label, loss))
        self._remember((slot, code, part, arrival, seconds, label, loss))

    # --- what is known of every slot, in memory -------------------------------------------------

    def _remember(self, facts: Facts) -> None:
        slot, _, part, arrival, seconds, label, loss = facts
        self._move(slot, part)
        self._arrivals[slot], self._seconds[slot] = arrival, seconds
        self._labels[slot], self._losses[slot] = label, loss

    def _move(self, slot: int, part: int) -> None:
        self._count[self._part[slot]] -= 1
        self._count[part] += 1
        self._part[slot] = part

    def _load(self, slots: int) -> None:
        """Reads the facts into arrays that are written whole: their memory does not grow later."""
        self._part = np.full(slots, 0, np.uint8)
        self._count = [slots, 0, 0, 0]  # of slots in each part
        self._arrivals = np.full(slots, 0, np.int64)
        self._seconds = np.full(slots, 0, np.float64)
        self._labels = np.full(slots, 0, np.int32)
        self._losses = np.full(slots, 0, np.float32)
        for facts in self._database.all_facts():
            self._remember(facts)
        self._counters = self._database.counters()
        waiting = int(WAITING_PART * slots) if self.spec.y else 0
        held_out = int(HELD_OUT_PART * (slots - waiting))
        trained = slots - waiting - held_out
        self._quota = {WAITING: waiting, HELD_OUT: held_out, TRAINED: trained}

    def _trim(self) -> None:
        """Frees the oldest of parts that hold more than they may, as after a smaller profile."""
        for part, quota in self._quota.items():
            if (over := self._count[part] - quota) > 0:
                held = np.flatnonzero(self._part == part)
                oldest = held[np.argsort(self._arrivals[held])[:over]]
                with self._changing() as counters:
                    counters["not_kept"] += over
                    self._free(oldest.tolist())

    def _batch(self, slots: Sequence[int] | Array) -> Batch:
        numbers = np.asarray(slots)
        return Batch(*self.spec.unpack(self._database.contents(numbers.tolist())), numbers)

    def _claim_for(self, seed: int, size: Size) -> int:
        """Returns the seed of the store; raises `StoreError` if its examples are others."""
        about = self._database.about()
        if about and about["spec"] != self.spec.to_json():
            held = ExampleSpec.from_json(about["spec"])
            raise StoreError(
                f"{self._database.path} holds examples {held}; the bundle takes {self.spec}: "
                "give another --state, or --erase-store."
            )
        if about and int(about["slots"]) > size.slots:
            self._database.shrink(size.slots)
        said = {"spec": self.spec.to_json(), "seed": about.get("seed", str(seed))}
        with self._database.change():
            self._database.say_about({**said, "slots": str(size.slots), "keep": self.keep})
        return int(said["seed"])


def _code(key: str) -> int:
    """Returns the number under which a key is stored: its own, or a hash of 62 bits."""
    if _OWN_KEY.fullmatch(key):
        return int(key[1:])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _GIVEN + _GIVEN
