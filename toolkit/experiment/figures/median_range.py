"""The median over seeds with the lowest and the highest value: a line and its band in a figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MedianRange:
    """The same quantity of several seeds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> MedianRange:
        """Returns the median and the range of at least one number."""
        found = list(numbers)
        return cls(statistics.median(found), min(found), max(found))


def median_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, MedianRange]:
    """Returns the medians of several seeds' curves, where all of them have a point."""
    common = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {x: MedianRange.of(curve[x] for curve in curves) for x in sorted(common)}
