"""The numbers of the supervised figure and tables, computed from results.

Accuracies are in percent.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.experiment.cell import DEVICES, WEAK
from toolkit.experiment.figures.arms import Arm, Comparison
from toolkit.experiment.figures.estimate import Scores
from toolkit.experiment.figures.median_range import MedianRange, median_curve
from toolkit.experiment.running.results import Result
from toolkit.experiment.supervised.cell import SupervisedCell

SupervisedResult = Result[SupervisedCell]
HEADINGS = ("device", "holds")
_ACCURACY = "test_accuracy"


def comparisons(results: Sequence[SupervisedResult]) -> list[Comparison]:
    """Returns the test accuracies of the best versions, by device and fraction of the data."""
    found = [
        Comparison((device, f"{100 * held(device, f):g} %"), final_accuracies(results, device, f))
        for device in DEVICES
        for f in fractions(results)
    ]
    return [comparison for comparison in found if comparison.scores]


def final_accuracies(
    results: Sequence[SupervisedResult], device: str, weak_fraction: float
) -> dict[Arm, Scores]:
    """Returns the test accuracy of the version that validated best, by arm and seed."""
    found: dict[Arm, dict[int, float]] = {}
    for result in _of(results, device, weak_fraction):
        accuracy = 100 * result.finals[device].scores[_ACCURACY]
        found.setdefault(_arm(result.cell, device), {})[result.cell.seed] = accuracy
    return {arm: found[arm] for arm in sorted(found)}


def learning_curves(
    results: Sequence[SupervisedResult], device: str, weak_fraction: float
) -> dict[Arm, dict[int, MedianRange]]:
    """Returns the test accuracies of the current versions, by arm and round."""
    found: dict[Arm, list[dict[int, float]]] = {}
    for result in _of(results, device, weak_fraction):
        points = [point for point in result.curve(device) if _ACCURACY in point.scores]
        curve = {point.round: 100 * point.scores[_ACCURACY] for point in points}
        found.setdefault(_arm(result.cell, device), []).append(curve)
    return {arm: median_curve(found[arm]) for arm in sorted(found)}


def fractions(results: Sequence[SupervisedResult]) -> list[float]:
    """Returns the weak device's fractions of the data that were studied."""
    return sorted({r.cell.weak_fraction for r in results})


def held(device: str, weak_fraction: float) -> float:
    """Returns the device's own fraction of the data."""
    return weak_fraction if device == WEAK else 1 - weak_fraction


def _of(
    results: Sequence[SupervisedResult], device: str, weak_fraction: float
) -> list[SupervisedResult]:
    return [r for r in results if r.cell.weak_fraction == weak_fraction and device in r.finals]


def _arm(cell: SupervisedCell, device: str) -> Arm:
    return Arm.of(cell.setting, cell.topology, device, cell.branch_dropout)
