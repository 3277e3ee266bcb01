"""A mean over seeds with its standard error, and the difference of two arms seed by seed.

mean x̄, standard error s / √n, with s² = Σ (x_i - x̄)² / (n - 1)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Scores = Mapping[int, float]  # by seed
STANDARD_ERRORS = 2  # a difference that exceeds so many of them counts


@dataclass(frozen=True)
class Estimate:
    """The mean of the same quantity of several seeds."""

    mean: float
    error: float | None  # the standard error of the mean; None with one seed
    seeds: int

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Estimate:
        """Returns the mean and its standard error of at least one number."""
        found = list(numbers)
        one = len(found) == 1
        error = None if one else statistics.stdev(found) / math.sqrt(len(found))
        return cls(statistics.fmean(found), error, len(found))

    @property
    def counts(self) -> bool:
        """Whether the mean differs from zero by more than two standard errors."""
        return self.error is not None and abs(self.mean) > STANDARD_ERRORS * self.error

    def text(self, *, digits: int = 1, signed: bool = False) -> str:
        """mean ± standard error, or the only number"""
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        return mean if self.error is None else f"{mean} ± {self.error:.{digits}f}"


def difference(arm: Scores, control: Scores) -> Estimate | None:
    """Returns the mean of arm - control over the seeds that both have; None if there are none.

    A seed decides the split of the data, the initial weights and the order of examples in all arms
    alike, so that differences of the same seed vary less than the scores do.
    """
    seeds = arm.keys() & control.keys()
    return Estimate.of(arm[seed] - control[seed] for seed in sorted(seeds)) if seeds else None
