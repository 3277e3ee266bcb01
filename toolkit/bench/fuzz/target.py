"""What a target of the fuzzer is, and when an input has failed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolkit.bench.fuzz.changes import change

Mutate = Callable[[random.Random, bytes], bytes]


class Failed(Exception):
    """An input did what no input may do; the text is one sentence."""


class Session(Protocol):
    """A target that is ready for inputs; any exception but what it expects is a failure."""

    def run(self, data: bytes) -> None:
        """Takes one input."""
        ...

    def reproducer(self, data: bytes) -> bytes:
        """Returns the input that leads to the same failure in a new session."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Target:
    """A parser or a party of a fleet."""

    name: str
    about: str
    seeds: Callable[[], list[bytes]]  # valid inputs
    open: Callable[[Path], Session]  # in an empty folder
    mutator: Callable[[list[bytes]], Mutate] | None = None  # from the seeds
    share: int = 1  # of the time, beside the others

    def mutate(self, seeds: list[bytes]) -> Mutate:
        """Returns what changes an input of this target once."""
        if self.mutator is not None:
            return self.mutator(seeds)
        return lambda rng, data: change(rng, data, seeds)


class Parser:
    """A session without memory: each input is read by itself."""

    def __init__(
        self, read: Callable[[bytes], None], close: Callable[[], None] = lambda: None
    ) -> None:
        self.run = read
        self.close = close

    def reproducer(self, data: bytes) -> bytes:
        return data


def check(condition: bool, what: str) -> None:
    """Raises `Failed` if what must hold does not."""
    if not condition:
        raise Failed(what)


def check_sentence(error: Exception) -> None:
    """A refusal is one short sentence, whatever was refused."""
    check(0 < len(str(error)) < 1000, f"a refusal has {len(str(error))} characters.")
