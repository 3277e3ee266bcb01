"""The median over seeds, and its extremes: what lines and bands of a figure show."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The same number of several seeds."""

    median: float
    lowest: float
    highest: float
    seeds: int

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Spread:
        found = list(numbers)
        return cls(statistics.median(found), min(found), max(found), len(found))

    def __str__(self) -> str:
        """median (lowest–highest)"""
        if self.seeds == 1:
            return f"{self.median:.1f}"
        return f"{self.median:.1f} ({self.lowest:.1f}–{self.highest:.1f})"


def shown(spread: Spread | None) -> str:
    return "–" if spread is None else str(spread)
