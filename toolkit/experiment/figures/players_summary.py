"""The numbers of the players' figure and table, computed from results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.experiment.cell import ANY, ISOLATED
from toolkit.experiment.figures.median_range import MedianRange
from toolkit.experiment.players.cell import MODES, SHARE_FIRST, PlayerCell
from toolkit.experiment.running.results import Result

PAPER_GAMES = ("breakout", "beam_rider", "space_invaders")  # in the order of its figure
PlayerResult = Result[PlayerCell]


@dataclass(frozen=True)
class Line:
    """One line of a figure: a device in a setting, in studies with this rate of the weak device."""

    game: str
    setting: str
    device: str
    weak_rate: float
    topology: str = SHARE_FIRST

    def shows(self, result: PlayerResult) -> bool:
        """Whether the cell is part of the line; some controls are common to all rates."""
        cell = result.cell
        return (
            (cell.game, cell.setting) == (self.game, self.setting)
            and cell.topology in (self.topology, ANY)
            and (cell.weak_rate == self.weak_rate or cell.mode == ANY)
            and self.device in result.finals
        )


def learning_curve(results: Sequence[PlayerResult], line: Line) -> dict[int, MedianRange]:
    """Returns the mean score of the last test episodes, by steps that all seeds have."""
    curves = [smoothed(result, line.device) for result in filter(line.shows, results)]
    steps = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {s: MedianRange.of(curve[s] for curve in curves) for s in sorted(steps)}


def smoothed(result: PlayerResult, device: str) -> dict[int, float]:
    """Returns, by steps, the mean of the last scores in a window (of fewer at the beginning)."""
    points = sorted(result.curve(device), key=lambda point: point.round)
    scores, window = [point.scores["score"] for point in points], result.cell.window(device)
    return {
        int(point.scores["steps"]): statistics.fmean(scores[max(0, end - window) : end])
        for end, point in enumerate(points, start=1)
    }


def final_scores(results: Sequence[PlayerResult], line: Line) -> MedianRange | None:
    """Returns the scores at the end."""
    found = [r.finals[line.device].scores["score"] for r in filter(line.shows, results)]
    return MedianRange.of(found) if found else None


def modes(results: Sequence[PlayerResult]) -> list[str]:
    """Returns the modes that were studied; the first one if all devices were isolated."""
    used = {result.cell.mode for result in results}
    return [name for name in MODES if name in used] or [MODES[0]]


def of_mode(mode: str, results: Sequence[PlayerResult]) -> list[PlayerResult]:
    """Returns the results of fleets in this mode, and of isolated devices."""
    return [r for r in results if r.cell.mode in (mode, ANY)]


def games(results: Sequence[PlayerResult]) -> list[str]:
    """Returns the games: the paper's in its order, then others."""
    found = {result.cell.game for result in results}
    return [g for g in PAPER_GAMES if g in found] + sorted(found - set(PAPER_GAMES))


def weak_rates(results: Sequence[PlayerResult], game: str) -> list[float]:
    """Returns the rates of fleets that played the game, the highest first; [1] without fleets."""
    cells = [result.cell for result in results if result.cell.game == game]
    found = {cell.weak_rate for cell in cells if cell.setting != ISOLATED}
    return sorted(found, reverse=True) or [1.0]
