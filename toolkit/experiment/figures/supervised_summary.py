"""The numbers of the supervised figure and tables, computed from results.

Accuracies are in percent, errors as they were measured (`shown.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.experiment.cell import DEVICES, WEAK
from toolkit.experiment.figures.arms import Arm, Comparison
from toolkit.experiment.figures.estimate import Scores
from toolkit.experiment.figures.median_range import MedianRange, median_curve
from toolkit.experiment.figures.shown import shown_of
from toolkit.experiment.running.results import Result
from toolkit.experiment.supervised.cell import SupervisedCell

SupervisedResult = Result[SupervisedCell]
HEADINGS = ("device", "holds")


def comparisons(results: Sequence[SupervisedResult]) -> list[Comparison]:
    """Returns what the best versions reach in the test, by device and fraction of the data."""
    scores = {
        (device, f): final_scores(results, device, f)
        for device in DEVICES
        for f in fractions(results)
    }
    digits = shown_of(results).digits(
        score for arms in scores.values() for own in arms.values() for score in own.values()
    )
    return [
        Comparison((device, f"{100 * held(device, f):g} %"), found, digits)
        for (device, f), found in scores.items()
        if found
    ]


def final_scores(
    results: Sequence[SupervisedResult], device: str, weak_fraction: float
) -> dict[Arm, Scores]:
    """Returns the test score of the version that validated best, by arm and seed."""
    shown = shown_of(results)
    found: dict[Arm, dict[int, float]] = {}
    for result in _of(results, device, weak_fraction):
        score = shown.factor * result.finals[device].scores[shown.key]
        found.setdefault(_arm(result.cell, device), {})[result.cell.seed] = score
    return {arm: found[arm] for arm in sorted(found)}


def learning_curves(
    results: Sequence[SupervisedResult], device: str, weak_fraction: float
) -> dict[Arm, dict[int, MedianRange]]:
    """Returns the test scores of the current versions, by arm and round."""
    shown = shown_of(results)
    found: dict[Arm, list[dict[int, float]]] = {}
    for result in _of(results, device, weak_fraction):
        points = [point for point in result.curve(device) if shown.key in point.scores]
        curve = {point.round: shown.factor * point.scores[shown.key] for point in points}
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
