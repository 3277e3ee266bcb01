"""What a device reports while its cell runs, and at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A device's scores after `round` rounds."""

    device: str
    round: int
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Final:
    """A device's scores after the whole cell."""

    device: str
    scores: Mapping[str, float]


OnPoint = Callable[[Point], None]
