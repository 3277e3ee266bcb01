"""How the measure of a supervised study is shown: in percent, or as an error with its digits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.errors import ExperimentError
from toolkit.experiment.running.results import Result
from toolkit.experiment.supervised.cell import SupervisedCell

SIGNIFICANT = 3  # digits of the largest error


@dataclass(frozen=True)
class Shown:
    """One measure, by its name among the scores of a test."""

    key: str
    name: str
    factor: float = 1.0
    unit: str = ""  # behind a value
    of_difference: str = ""  # behind a difference
    lower_is_better: bool = False

    @property
    def label(self) -> str:
        """The label of an axis."""
        return f"{self.name} (lower is better)" if self.lower_is_better else f"{self.name} (%)"

    @property
    def caption(self) -> str:
        if self.lower_is_better:
            return f"{self.name} (lower is better)"
        return f"{self.name} in percent"

    def gain(self, score: float) -> float:
        """Returns a number that is higher for what is better."""
        return -score if self.lower_is_better else score

    def digits(self, scores: Iterable[float]) -> int:
        """Returns how many digits behind the point show them."""
        largest = max(map(abs, scores), default=0.0)
        if not self.lower_is_better or not largest:
            return 1
        return max(0, SIGNIFICANT - 1 - math.floor(math.log10(largest)))


ACCURACY = Shown("test_accuracy", "test accuracy", 100.0, " %", "points")
_MEASURES = (
    ACCURACY,
    Shown("test_rmse", "test RMSE", of_difference="RMSE", lower_is_better=True),
    Shown(
        "test_reconstruction_error",
        "test reconstruction error",
        of_difference="reconstruction error",
        lower_is_better=True,
    ),
)


def shown_of(results: Sequence[Result[SupervisedCell]]) -> Shown:
    """Returns the measure that the results have; raises an ExperimentError if they have several."""
    found = {shown for r in results for f in r.finals.values() for shown in _of_scores(f.scores)}
    if len(found) > 1:
        raise ExperimentError(
            "these results are measured in different ways, and cannot be shown together."
        )
    return found.pop() if found else ACCURACY


def _of_scores(scores: Mapping[str, float]) -> list[Shown]:
    return [shown for shown in _MEASURES if shown.key in scores]
