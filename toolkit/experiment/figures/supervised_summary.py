"""The numbers of the supervised figure and table, computed from results.

Accuracies are in percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.experiment.cell import ANY, HETEROGENEOUS
from toolkit.experiment.figures.median_range import MedianRange
from toolkit.experiment.running.results import Result
from toolkit.experiment.supervised.cell import SupervisedCell

SupervisedResult = Result[SupervisedCell]
_ACCURACY = "test_accuracy"


@dataclass(frozen=True)
class Line:
    """One line of a figure: a device in a setting and a topology."""

    setting: str
    topology: str
    device: str
    branch_dropout: bool = True

    def shows(self, result: SupervisedResult) -> bool:
        """Whether the cell is part of the line; one without a topology is part of all lines."""
        cell = result.cell
        return (
            cell.setting == self.setting
            and cell.topology in (self.topology, ANY)
            and cell.branch_dropout == self.branch_dropout
            and self.device in result.finals
        )


def final_accuracies(results: Sequence[SupervisedResult], line: Line) -> dict[float, MedianRange]:
    """Returns the test accuracy of the best versions, by the weak device's fraction of the data."""
    found: dict[float, list[float]] = {}
    for result in filter(line.shows, results):
        accuracy = 100 * result.finals[line.device].scores[_ACCURACY]
        found.setdefault(result.cell.weak_fraction, []).append(accuracy)
    return {fraction: MedianRange.of(found[fraction]) for fraction in sorted(found)}


def learning_curve(
    results: Sequence[SupervisedResult], line: Line, weak_fraction: float
) -> dict[int, MedianRange]:
    """Returns the test accuracy of the current versions, by rounds that all seeds have."""
    curves = [
        {
            p.round: 100 * p.scores[_ACCURACY]
            for p in result.curve(line.device)
            if _ACCURACY in p.scores
        }
        for result in filter(line.shows, results)
        if result.cell.weak_fraction == weak_fraction
    ]
    rounds = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {r: MedianRange.of(curve[r] for curve in curves) for r in sorted(rounds)}


def topologies(results: Sequence[SupervisedResult]) -> list[str]:
    """Returns the topologies of fleets; share-first comes first, as in the paper."""
    fleets = {r.cell.topology for r in results if r.cell.setting == HETEROGENEOUS}
    return sorted(fleets or {r.cell.topology for r in results} - {ANY}, reverse=True)


def fractions(results: Sequence[SupervisedResult]) -> list[float]:
    """Returns the weak device's fractions of the data that were studied."""
    return sorted({r.cell.weak_fraction for r in results})


def has_ablation(results: Sequence[SupervisedResult]) -> bool:
    """Whether some cells were run without branch dropout."""
    return any(not result.cell.branch_dropout for result in results)
