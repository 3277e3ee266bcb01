"""The store: examples come in, wait for their labels, are kept or not, and are drawn to train on.

Every example is in one of three parts, each with a number of slots that is never exceeded: it waits
for its label, it is trained on, or it is held out. Who is held out follows from the key alone, so
an example that is held out is never trained on, whenever it comes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.errors import StoreError, WrongInput
from firmware_sim.normalisation import Learnt
from firmware_sim.store.database import FILE, Database, Facts
from firmware_sim.store.keys import code_of, is_own, own_key
from firmware_sim.store.retention import POLICIES, Newcomer, is_held_out
from firmware_sim.store.size import Size
from firmware_sim.store.slots import FREE, HELD_OUT, TRAINED, WAITING, Slots
from firmware_sim.store.spec import ExampleSpec
from firmware_sim.tensor_spec import Array

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
        learnt: Learnt | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the store of a state folder, or makes it; `seed` counts when it is made.

        `learnt` learns from every example that comes, and is kept with them.
        """
        if keep not in POLICIES:
            raise StoreError(f"examples can be kept as {', '.join(POLICIES)}, not {keep!r}.")
        if keep == "balanced" and not spec.is_one_class:
            raise StoreError("only examples with one class each can be kept balanced.")
        self.spec = spec
        self.keep = keep
        self._policy = POLICIES[keep]
        self._label_seconds = label_seconds
        self._learnt = learnt
        self._clock = clock
        self._lock = threading.RLock()
        self._counters: dict[str, int] = {}
        self._database = Database(folder / FILE, size)
        try:
            self._seed = self._claim_for(seed, size)
            self._load(size.slots)
            self._trim()
            if learnt is not None and (moments := self._database.moments()) is not None:
                learnt.take(learnt.unpack(moments))
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
        loss = _finite(loss)
        with self._lock:
            if key and (known := self._database.facts_of(code_of(key))):
                with self._changing() as counters:
                    counters["repeated"] += 1
                    if y is not None and known[2] == WAITING:
                        self._give_label(known, data, loss, counters)
                return key
            if is_own(key):
                raise WrongInput(f"the key {key!r} is like the store's own; give it another form.")
            self._expire()
            counters = dict(self._counters)
            counters["arrivals"] += 1
            number = counters["arrivals"]
            code = code_of(key) if key else number
            if labelled:
                part = self._part_of(code)
                newcomer = self._newcomer(part, number, data, loss, counters)
                slot = self._slot_in(part, newcomer, counters)
            else:
                part, newcomer = WAITING, Newcomer(number)
                slot = self._slot_to_wait_in(counters)
            more = self._learnt.after(self.spec.as_x(x)) if self._learnt else None
            moments = more.pack() if more else None
            if slot is None:
                with self._database.change():
                    self._database.set_counters(counters)
                    if moments is not None:
                        self._database.set_moments(moments)
            else:
                facts = _facts(slot, code, part, newcomer, self._clock())
                self._database.put_example(facts, data, counters, moments)
                self._slots.put(facts)
            self._counters = counters
            if self._learnt and more:
                self._learnt.take(more)
        return key or own_key(number)

    def label(self, key: str, y: Any, *, loss: float = math.inf) -> bool:
        """Gives an example its target, or another one; returns False if it is not there any more.

        It is not if its label came too late, or if others have taken its place.
        """
        loss = _finite(loss)
        with self._lock:
            known = self._database.facts_of(code_of(key))
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
            known = self._database.facts_of(code_of(key))
            return self._batch(known[:1]).x[0] if known else None

    def sample(self, rng: np.random.Generator, size: int) -> Batch:
        """Draws examples to train on, each at most once if there are enough."""
        with self._lock:
            slots = self._slots.within(TRAINED)
            if not len(slots):
                raise StoreError("there are no examples to train on.")
            return self._batch(rng.choice(slots, size, replace=len(slots) < size))

    def held_out(self, size: int) -> Iterator[Batch]:
        """Yields the examples that are held out now, at most `size` at a time."""
        return self.examples(HELD_OUT, size)

    def examples(self, part: int, size: int) -> Iterator[Batch]:
        """Yields the examples that are in a part now, the oldest first, `size` at a time."""
        with self._lock:
            slots = self._slots.oldest_first(part)
        for start in range(0, len(slots), size):
            with self._lock:
                some = slots[start : start + size]
                still = some[self._slots.part[some] == part]  # others may have left meanwhile
                found = self._batch(still) if len(still) else None
            if found is not None:
                yield found

    def set_losses(self, slots: Array, losses: Array) -> None:
        """What the model's losses are on examples that were drawn; `hardest` keeps by them."""
        losses = np.where(np.isfinite(losses), losses, np.float32(math.inf))
        with self._changing():
            self._slots.losses[slots] = losses
            self._database.set_losses(list(zip(map(float, losses), map(int, slots), strict=True)))

    @property
    def trained(self) -> int:
        """The number of examples to train on."""
        return self._slots.count[TRAINED]

    def counts(self) -> Counts:
        with self._lock:
            said = {name: self._counters[name] for name in _SHOWN}
            return Counts(
                waiting=self._slots.count[WAITING],
                trained=self._slots.count[TRAINED],
                held_out=self._slots.count[HELD_OUT],
                slots=len(self._slots),
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
                self._load(len(self._slots))
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
        if self._slots.part[place] != FREE:
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
        if not self._slots.is_full(part):
            return self._slots.lowest_free()
        held = self._slots.within(part)
        counters["not_kept"] += 1
        victim = self._policy(self._slots.facts_of(held), newcomer, self._seed)
        return None if victim is None else int(held[victim])

    def _slot_to_wait_in(self, counters: dict[str, int]) -> int:
        """Returns a free slot, or that of the one that has waited longest, if no more may wait."""
        if not self._slots.is_full(WAITING):
            return self._slots.lowest_free()
        counters["expired"] += 1
        return self._slots.oldest(WAITING)

    def _expire(self) -> None:
        if not self._slots.count[WAITING] or self._label_seconds == math.inf:
            return
        overdue = self._slots.waiting_since_before(self._clock() - self._label_seconds)
        if len(overdue):
            with self._changing() as counters:
                self._free(overdue.tolist())
                counters["expired"] += len(overdue)

    def _free(self, slots: Sequence[int]) -> None:
        self._database.free(slots)
        for slot in slots:
            self._slots.free(slot)

    def _put(self, slot: int, code: int, part: int, newcomer: Newcomer, seconds: float) -> None:
        facts = _facts(slot, code, part, newcomer, seconds)
        self._database.put_facts(facts)
        self._slots.put(facts)

    def _load(self, slots: int) -> None:
        self._slots = Slots(slots, labelled=self.spec.y is not None)
        for facts in self._database.all_facts():
            self._slots.put(facts)
        self._counters = self._database.counters()

    def _trim(self) -> None:
        """Frees the oldest of parts that hold more than they may, as after a smaller profile."""
        for part, quota in self._slots.quota.items():
            if (over := self._slots.count[part] - quota) > 0:
                with self._changing() as counters:
                    counters["not_kept"] += over
                    self._free(self._slots.oldest_first(part)[:over].tolist())

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


def _finite(loss: float) -> float:
    """A loss that is no number counts as unknown."""
    return loss if math.isfinite(loss) else math.inf


def _facts(slot: int, code: int, part: int, newcomer: Newcomer, seconds: float) -> Facts:
    return slot, code, part, newcomer.arrival, seconds, newcomer.label, newcomer.loss
