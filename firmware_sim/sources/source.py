"""The contract of every source: what it yields, in the order in which it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from firmware_sim.tensor_spec import Array


@dataclass(frozen=True, eq=False)
class Observation:
    """One example as a sensor delivers it."""

    x: Array
    y: Any = None  # the target, or None while it is not known
    key: str = ""  # under which a `LateLabel` may name it, and it is stored only once


@dataclass(frozen=True)
class LateLabel:
    """The target of an observation that came before."""

    key: str
    y: Any


@dataclass(frozen=True)
class Malformed:
    """Something that is no example; it is counted and skipped."""

    reason: str  # one sentence


class Source(Protocol):
    """A sensor, a file that grows, a topic, a folder."""

    def events(self) -> Iterator[Observation | LateLabel | Malformed | None]:
        """Yields what comes; None at least once a second while nothing does.

        It ends when nothing can come any more. What it waits for it waits for without spinning.
        """

    def close(self) -> None:
        """Releases what it reads from; `events` ends soon after.

        May be called from any thread, and more than once.
        """
