"""The paper's figure of reinforcement learning.

Test scores over steps, for every game, on the powerful and the weak device:

    (a, b)  first game, equal rates             (g, h)  second game
    (c, d)  the weak device at half the rate    (i, j)  third game
    (e, f)  at a quarter

Panels without results are left out, and the letters are consecutive. Scores are means over a
sliding window of a quarter of the steps; lines are medians over seeds, bands range from the lowest
to the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from toolkit.experiment.cell import DEVICES
from toolkit.experiment.figures.drawing import (
    Curve,
    draw_curves,
    draw_legend,
    set_title,
    share_y_axis,
)
from toolkit.experiment.figures.players_summary import (
    Panel,
    PlayerResult,
    games,
    learning_curves,
    weak_rates,
)

MILLION, THOUSAND = 1_000_000, 1_000


def draw_players(results: Sequence[PlayerResult], mode: str) -> Any:
    """Draws fleets of one mode: the first game on the left and the others on the right."""
    from matplotlib.figure import Figure

    first, *others = games(results)
    left = [(first, rate) for rate in weak_rates(results, first)]
    right = [(game, rate) for game in others for rate in weak_rates(results, game)]
    rows, columns = max(len(left), len(right)), 4 if right else 2
    figure = Figure(figsize=(3.6 * columns, 2.6 * rows + 0.9), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for panel in grid.flat:
        panel.set_axis_off()
    letters = iter(ascii_lowercase)
    panels: dict[str, list[Any]] = {}
    for section, places in ((left, grid[:, :2]), (right, grid[:, 2:])):
        for (game, rate), pair in zip(section, places, strict=False):
            panels.setdefault(game, []).extend(pair)
            for panel, device in zip(pair, reversed(DEVICES), strict=True):
                text = f"{game}: {device}" + (f", $v_{{weak}} = {rate:g}$" if rate != 1 else "")
                _draw(panel, results, Panel(game, mode, rate, device))
                set_title(panel, next(letters), text)
            pair[0].set_ylabel("test episode reward")
    for of_one_game in panels.values():
        share_y_axis(of_one_game)
    draw_legend(figure, list(grid.flat))
    return figure


def _draw(panel: Any, results: Sequence[PlayerResult], shown: Panel) -> None:
    panel.set_axis_on()
    panel.grid(alpha=0.3)
    curves = learning_curves(results, shown)
    longest = max((step for curve in curves.values() for step in curve), default=0)
    unit, name = (MILLION, "million") if longest >= MILLION else (THOUSAND, "thousand")
    draw_curves(panel, {arm: _per(unit, curve) for arm, curve in curves.items()})
    panel.set_xlabel(f"{name} steps")
    panel.set_xlim(0, longest / unit if longest else 1)


def _per(unit: int, curve: Curve) -> Curve:
    return {step / unit: found for step, found in curve.items()}
