"""The table of the players' study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.experiment.cell import DEVICES, SETTINGS
from toolkit.experiment.figures.median_range import cell_text
from toolkit.experiment.figures.players_summary import (
    Line,
    PlayerResult,
    final_scores,
    games,
    modes,
    of_mode,
    weak_rates,
)
from toolkit.experiment.figures.table import StudyTable, caption
from toolkit.experiment.players.cell import SCORE_WINDOW

HEADINGS = ("game", "coordinator", "rate of weak", "device", *SETTINGS)


def players_table(results: Sequence[PlayerResult]) -> StudyTable:
    """Returns, for every setting, the median (lowest–highest) of the final scores."""
    options = results[0].cell.options
    sentence = caption(
        results,
        what=f": mean score of the tests in the last {SCORE_WINDOW:.0%} of the steps",
        length=f"{options.steps_per_round} steps",
        details=f", warm-up {options.warm_up}, exploration {options.exploration}, "
        f"replay {options.replay[0]} and {options.replay[1]} steps",
    )
    return StudyTable(HEADINGS, tuple(_rows(results)), sentence)


def _rows(results: Sequence[PlayerResult]) -> Iterator[tuple[str, ...]]:
    for game in games(results):
        for mode in modes(results):
            found = of_mode(mode, results)
            for rate in weak_rates(found, game):
                for device in DEVICES:
                    lines = [Line(game, setting, device, rate) for setting in SETTINGS]
                    cells = [cell_text(final_scores(found, line)) for line in lines]
                    yield game, mode, f"{rate:g}", device, *cells
