"""Curves of bounded size: a device's measure by round, however many rounds there are; pure.

A curve that is full drops every second point, and from then on takes points half as often. Its
first and its newest point are always there.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_POINTS = 240


class Curve:
    """Points (round, value) in the order of their rounds."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._kept: list[tuple[int, float]] = []
        self._newest: tuple[int, float] | None = None
        self._step = 1  # rounds at least between two points that are kept

    def add(self, round: int, value: float) -> bool:
        """Adds a point, or replaces the newest; returns False for a round that is over."""
        if self._newest is not None and round < self._newest[0]:
            return False
        self._newest = round, value
        if self._kept and round == self._kept[-1][0]:
            self._kept[-1] = round, value
        elif not self._kept or round - self._kept[-1][0] >= self._step:
            self._kept.append((round, value))
            if len(self._kept) >= self._most:
                del self._kept[1::2]
                self._step *= 2
        return True

    @property
    def points(self) -> Sequence[tuple[int, float]]:
        if self._newest is None or self._newest == self._kept[-1]:
            return self._kept
        return [*self._kept, self._newest]

    @property
    def first(self) -> float | None:
        return self._kept[0][1] if self._kept else None
