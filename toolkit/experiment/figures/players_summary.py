"""The numbers of the players' figure and tables, computed from results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.experiment.cell import ANY, DEVICES, ISOLATED, POWERFUL
from toolkit.experiment.figures.arms import Arm, Comparison
from toolkit.experiment.figures.estimate import Scores
from toolkit.experiment.figures.median_range import MedianRange, median_curve
from toolkit.experiment.players.cell import MODES, PlayerCell
from toolkit.experiment.running.results import Result

PAPER_GAMES = ("breakout", "beam_rider", "space_invaders")  # in the order of its figure
PlayerResult = Result[PlayerCell]
HEADINGS = ("game", "coordinator", "rate of weak", "device")


@dataclass(frozen=True)
class Panel:
    """A device that plays a game in fleets of one mode, with one rate of the weak device."""

    game: str
    mode: str
    weak_rate: float
    device: str

    def shows(self, result: PlayerResult) -> bool:
        """Whether the cell is one of these fleets, or the control of this device in them.

        Only the powerful device has a control that fleets of several rates have in common.
        """
        cell = result.cell
        common = cell.mode == ANY and self.device == POWERFUL
        return (
            cell.game == self.game
            and cell.mode in (self.mode, ANY)
            and (cell.weak_rate == self.weak_rate or common)
            and self.device in result.finals
        )


def comparisons(results: Sequence[PlayerResult]) -> list[Comparison]:
    """Returns the final scores, by game, mode, rate and device."""
    found = [
        Comparison((game, mode, f"{rate:g}", device), final_scores(results, panel))
        for game in games(results)
        for mode in modes(results)
        for rate in weak_rates(of_mode(mode, results), game)
        for device in DEVICES
        for panel in [Panel(game, mode, rate, device)]
    ]
    return [comparison for comparison in found if comparison.scores]


def final_scores(results: Sequence[PlayerResult], panel: Panel) -> dict[Arm, Scores]:
    """Returns the mean score of the last tests, by arm and seed."""
    found: dict[Arm, dict[int, float]] = {}
    for result in filter(panel.shows, results):
        *_, last = smoothed(result, panel.device).values()
        found.setdefault(_arm(result.cell, panel.device), {})[result.cell.seed] = last
    return {arm: found[arm] for arm in sorted(found)}


def learning_curves(
    results: Sequence[PlayerResult], panel: Panel
) -> dict[Arm, dict[int, MedianRange]]:
    """Returns the scores in a sliding window, by arm and steps."""
    found: dict[Arm, list[dict[int, float]]] = {}
    for result in filter(panel.shows, results):
        curve = smoothed(result, panel.device)
        found.setdefault(_arm(result.cell, panel.device), []).append(curve)
    return {arm: median_curve(found[arm]) for arm in sorted(found)}


def smoothed(result: PlayerResult, device: str) -> dict[int, float]:
    """Returns, by steps, the mean of the tests in the window of steps that ends there.

    The window of the last point is the last quarter of the steps. At the beginning it has fewer
    tests.
    """
    cell = result.cell
    width = cell.window(device) * cell.steps(device)
    tests = {int(p.scores["steps"]): p.scores["score"] for p in result.curve(device)}
    return {
        end: statistics.fmean(score for at, score in tests.items() if end - width < at <= end)
        for end in sorted(tests)
    }


def modes(results: Sequence[PlayerResult]) -> list[str]:
    """Returns the modes that were studied; the first one if all devices were isolated."""
    used = {result.cell.mode for result in results}
    return [name for name in MODES if name in used] or [MODES[0]]


def of_mode(mode: str, results: Sequence[PlayerResult]) -> list[PlayerResult]:
    """Returns the results of fleets in this mode, and of the controls that all modes have."""
    return [r for r in results if r.cell.mode in (mode, ANY)]


def games(results: Sequence[PlayerResult]) -> list[str]:
    """Returns the games: the paper's in its order, then others."""
    found = {result.cell.game for result in results}
    return [g for g in PAPER_GAMES if g in found] + sorted(found - set(PAPER_GAMES))


def weak_rates(results: Sequence[PlayerResult], game: str) -> list[float]:
    """Returns the rates of fleets that played the game, or else of all cells; the highest first."""
    cells = [result.cell for result in results if result.cell.game == game]
    fleets = {cell.weak_rate for cell in cells if cell.setting != ISOLATED}
    return sorted(fleets or {cell.weak_rate for cell in cells}, reverse=True)


def _arm(cell: PlayerCell, device: str) -> Arm:
    return Arm.of(cell.setting, cell.topology, device)
