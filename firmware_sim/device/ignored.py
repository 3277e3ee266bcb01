"""Counts the messages that a device ignores, and logs each kind once in a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from broker.errors import Unsigned, WireError
from broker.log import Log
from firmware_sim.errors import Implausible

LOG_SECONDS = 60.0  # at least, between two lines about one kind


class Ignored:
    """An attacker may send many; the log must not grow with each."""

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._next: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

    @property
    def unsigned(self) -> int:
        return self._counts["unsigned"]

    @property
    def implausible(self) -> int:
        return self._counts["implausible"]

    def count(self, topic: str, error: WireError) -> None:
        """Counts a message by what is wrong with it."""
        match error:
            case Unsigned():
                kind = "unsigned"
            case Implausible():
                kind = "implausible"
            case _:
                kind = "malformed"
        self._counts[kind] += 1
        now = self._clock()
        if now >= self._next.get(kind, now):
            self._next[kind] = now + LOG_SECONDS
            self._log.event("ignored", topic=topic, text=str(error), count=self._counts[kind])
