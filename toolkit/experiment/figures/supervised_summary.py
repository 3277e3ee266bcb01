"""Numbers of the supervised figure and table, from results alone; accuracies are in percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.experiment.cell import ANY
from toolkit.experiment.figures.median_range import Spread
from toolkit.experiment.running.results import Result
from toolkit.experiment.supervised.cell import SupervisedCell

Studied = Result[SupervisedCell]
_TESTED = "test_accuracy"


@dataclass(frozen=True)
class Line:
    """What a figure draws as one line: a device in a mode and a topology."""

    mode: str
    topology: str
    device: str
    branch_dropout: bool = True

    def shows(self, result: Studied) -> bool:
        """Whether a cell belongs to it; one that no topology changes belongs to all."""
        cell = result.cell
        return (
            cell.mode == self.mode
            and cell.topology in (self.topology, ANY)
            and cell.branch_dropout == self.branch_dropout
            and self.device in result.finals
        )


def final_accuracies(results: Sequence[Studied], line: Line) -> dict[float, Spread]:
    """Test accuracy of the best versions, by the weak device's fraction of the data."""
    found: dict[float, list[float]] = {}
    for result in filter(line.shows, results):
        accuracy = 100 * result.finals[line.device].scores[_TESTED]
        found.setdefault(result.cell.weak_fraction, []).append(accuracy)
    return {fraction: Spread.of(found[fraction]) for fraction in sorted(found)}


def learning_curve(
    results: Sequence[Studied], line: Line, weak_fraction: float
) -> dict[int, Spread]:
    """Test accuracy of the current versions, by round; only rounds that every seed has."""
    curves = [
        {p.round: 100 * p.scores[_TESTED] for p in result.curve(line.device) if _TESTED in p.scores}
        for result in filter(line.shows, results)
        if result.cell.weak_fraction == weak_fraction
    ]
    rounds = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {r: Spread.of(curve[r] for curve in curves) for r in sorted(rounds)}


def topologies(results: Sequence[Studied]) -> list[str]:
    """Those that were studied; share-first comes first, as in the paper."""
    return sorted({r.cell.topology for r in results} - {ANY}, reverse=True)


def fractions(results: Sequence[Studied]) -> list[float]:
    return sorted({r.cell.weak_fraction for r in results})
