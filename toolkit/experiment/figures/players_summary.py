"""Numbers of the players' figure and table, from results alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.experiment.cell import ANY, WEAK
from toolkit.experiment.figures.median_range import Spread
from toolkit.experiment.players.cell import COORDINATORS, RlCell
from toolkit.experiment.running.results import Result

WINDOW = 25  # test episodes; the paper's curves are means over so many
PAPER_GAMES = ("breakout", "beam_rider", "space_invaders")  # in the order of its figure
Played = Result[RlCell]


@dataclass(frozen=True)
class Line:
    """What a figure draws as one line: a device in a mode, beside a weak one of some rate."""

    game: str
    mode: str
    device: str
    weak_rate: float

    def shows(self, result: Played) -> bool:
        """Whether a cell belongs to it; who is alone is shown beside every rate."""
        cell = result.cell
        return (
            (cell.game, cell.mode) == (self.game, self.mode)
            and (cell.mode == "isolated" or cell.weak_rate == self.weak_rate)
            and self.device in result.finals
        )


def learning_curve(results: Sequence[Played], line: Line) -> dict[int, Spread]:
    """Mean score of the last test episodes, by steps; only those that every seed has."""
    curves = [smoothed(result, line.device) for result in filter(line.shows, results)]
    steps = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {s: Spread.of(curve[s] for curve in curves) for s in sorted(steps)}


def smoothed(result: Played, device: str) -> dict[int, float]:
    """By steps: the mean of the last `WINDOW` scores, or at the beginning of all there are."""
    points = sorted(result.curve(device), key=lambda point: point.round)
    scores = [point.scores["score"] for point in points]
    return {
        int(point.scores["steps"]): statistics.fmean(scores[max(0, end - WINDOW) : end])
        for end, point in enumerate(points, start=1)
    }


def final_scores(results: Sequence[Played], line: Line) -> Spread | None:
    """After as many steps as a device of a fleet takes: a weak one alone would take more."""
    found = [_final(result, line) for result in filter(line.shows, results)]
    return Spread.of(found) if found else None


def _final(result: Played, line: Line) -> float:
    settings = result.cell.settings
    if line.device != WEAK or result.cell.mode != "isolated" or line.weak_rate == 1:
        return result.finals[line.device].scores["score"]
    taken = settings.warm_up + line.weak_rate * settings.rounds * settings.steps_per_round
    curve = smoothed(result, line.device)
    return curve[max((steps for steps in curve if steps <= taken), default=min(curve))]


def coordinators(results: Sequence[Played]) -> list[str]:
    """Those that were studied; if nobody merged, the first."""
    used = {result.cell.coordinator for result in results}
    return [name for name in COORDINATORS if name in used] or [COORDINATORS[0]]


def merged_by(coordinator: str, results: Sequence[Played]) -> list[Played]:
    """Those of one coordinator, and those who were alone."""
    return [r for r in results if r.cell.coordinator in (coordinator, ANY)]


def games(results: Sequence[Played]) -> list[str]:
    """The paper's in its order, then others."""
    found = {result.cell.game for result in results}
    return [g for g in PAPER_GAMES if g in found] + sorted(found - set(PAPER_GAMES))


def weak_rates(results: Sequence[Played], game: str) -> list[float]:
    """Of fleets that played the game, the highest first; if all were alone, 1."""
    cells = [result.cell for result in results if result.cell.game == game]
    found = {cell.weak_rate for cell in cells if cell.mode != "isolated"}
    return sorted(found, reverse=True) or [1.0]
