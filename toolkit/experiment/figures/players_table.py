"""The rows of the players' study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.experiment.cell import DEVICES, MODES
from toolkit.experiment.figures.median_range import shown
from toolkit.experiment.figures.players_summary import (
    WINDOW,
    Line,
    Played,
    coordinators,
    final_scores,
    games,
    merged_by,
    weak_rates,
)

HEADINGS = ("game", "coordinator", "rate of weak", "device", *MODES)


def rows(results: Sequence[Played]) -> Iterator[tuple[str, ...]]:
    """For every mode the median (lowest–highest) of the final scores."""
    for game in games(results):
        for coordinator in coordinators(results):
            found = merged_by(coordinator, results)
            for rate in weak_rates(found, game):
                for device in DEVICES:
                    lines = [Line(game, mode, device, rate) for mode in MODES]
                    cells = [shown(final_scores(found, line)) for line in lines]
                    yield game, coordinator, f"{rate:g}", device, *cells


def about(results: Sequence[Played]) -> str:
    """One sentence on what was run."""
    first = results[0]
    settings = first.cell.settings
    seeds = len({result.cell.seed for result in results})
    rate = f" at learning rate {settings.learning_rate:g}" if settings.learning_rate else ""
    return (
        f"{settings.task}: mean score of the last {WINDOW} test episodes, median (lowest–highest) "
        f"of {seeds} seed{'s' if seeds > 1 else ''}; {settings.rounds} rounds of "
        f"{settings.steps_per_round} steps{rate}, warm-up {settings.warm_up}, exploration "
        f"{settings.exploration}, replay {settings.replay[0]} and {settings.replay[1]} steps; "
        f"engine {settings.engine}; commit {first.commit}."
    )
