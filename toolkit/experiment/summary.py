"""Numbers of a figure or a table, from results alone: the median over seeds, and its extremes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.experiment.cell import ANY
from toolkit.experiment.results import Result


@dataclass(frozen=True)
class Spread:
    """Accuracies of several seeds, in percent."""

    median: float
    lowest: float
    highest: float
    seeds: int

    @classmethod
    def of(cls, accuracies: Iterable[float]) -> Spread:
        found = [100 * accuracy for accuracy in accuracies]
        return cls(statistics.median(found), min(found), max(found), len(found))


@dataclass(frozen=True)
class Line:
    """What a figure draws as one line: a device in a mode and a topology."""

    mode: str
    topology: str
    device: str
    branch_dropout: bool = True

    def shows(self, result: Result) -> bool:
        """Whether a cell belongs to it; one that no topology changes belongs to all."""
        cell = result.cell
        return (
            cell.mode == self.mode
            and cell.topology in (self.topology, ANY)
            and cell.branch_dropout == self.branch_dropout
            and self.device in result.finals
        )


def final_accuracies(results: Sequence[Result], line: Line) -> dict[float, Spread]:
    """Test accuracy of the best versions, by the weak device's fraction of the data."""
    found: dict[float, list[float]] = {}
    for result in filter(line.shows, results):
        accuracy = result.finals[line.device].test_accuracy
        found.setdefault(result.cell.weak_fraction, []).append(accuracy)
    return {fraction: Spread.of(found[fraction]) for fraction in sorted(found)}


def learning_curve(
    results: Sequence[Result], line: Line, weak_fraction: float
) -> dict[int, Spread]:
    """Test accuracy of the current versions, by round; only rounds that every seed has."""
    curves = [
        {p.round: p.test_accuracy for p in result.curve(line.device) if p.test_accuracy is not None}
        for result in filter(line.shows, results)
        if result.cell.weak_fraction == weak_fraction
    ]
    rounds = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {r: Spread.of(curve[r] for curve in curves) for r in sorted(rounds)}


def topologies(results: Sequence[Result]) -> list[str]:
    """Those that were studied; share-first comes first, as in the paper."""
    return sorted({r.cell.topology for r in results} - {ANY}, reverse=True)


def fractions(results: Sequence[Result]) -> list[float]:
    return sorted({r.cell.weak_fraction for r in results})
