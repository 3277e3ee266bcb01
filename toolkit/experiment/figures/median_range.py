"""The median over seeds with the lowest and the highest value: a line and its band in a figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MedianRange:
    """The same quantity of several seeds."""

    median: float
    lowest: float
    highest: float
    seeds: int

    @classmethod
    def of(cls, numbers: Iterable[float]) -> MedianRange:
        """Returns the median and the range of at least one number."""
        found = list(numbers)
        return cls(statistics.median(found), min(found), max(found), len(found))

    def __str__(self) -> str:
        """median (lowest–highest), or the only number"""
        if self.seeds == 1:
            return f"{self.median:.1f}"
        return f"{self.median:.1f} ({self.lowest:.1f}–{self.highest:.1f})"


def cell_text(found: MedianRange | None) -> str:
    """Returns the text of a table's cell; a dash if there is no result."""
    return "–" if found is None else str(found)
