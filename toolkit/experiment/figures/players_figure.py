"""The paper's figure of reinforcement learning.

Test scores over steps, for every game, on the powerful and the weak device:

    (a, b)  first game, equal rates             (g, h)  second game
    (c, d)  the weak device at half the rate    (i, j)  third game
    (e, f)  at a quarter

Panels without results are left out, and the letters are consecutive. Scores are means over a
sliding window of test episodes; lines are medians over seeds, bands range from the lowest to the
highest. The weak device's panel ends with its last step in a fleet, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from toolkit.experiment.cell import DEVICES, SETTINGS, WEAK
from toolkit.experiment.figures.drawing import KEY, Curve, draw_lines, set_title, share_y_axis
from toolkit.experiment.figures.players_summary import (
    Line,
    PlayerResult,
    games,
    learning_curve,
    weak_rates,
)

MILLION, THOUSAND = 1_000_000, 1_000


def draw_players(results: Sequence[PlayerResult]) -> Any:
    """Draws the first game on the left and the others on the right."""
    from matplotlib.figure import Figure

    first, *others = games(results)
    left = [(first, rate) for rate in weak_rates(results, first)]
    right = [(game, rate) for game in others for rate in weak_rates(results, game)]
    rows, columns = max(len(left), len(right)), 4 if right else 2
    figure = Figure(figsize=(2.9 * columns, 2.2 * rows + 0.7), dpi=150, layout="constrained")
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
                _draw(panel, results, game, device, rate)
                set_title(panel, next(letters), text)
            pair[0].set_ylabel("test episode reward")
    for of_one_game in panels.values():
        share_y_axis(of_one_game)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    style = {"title": KEY, "frameon": False}
    figure.legend(handles, labels, loc="outside lower center", ncols=3, **style)
    return figure


def _draw(panel: Any, results: Sequence[PlayerResult], game: str, device: str, rate: float) -> None:
    panel.set_axis_on()
    panel.grid(alpha=0.3)
    lines = {s: learning_curve(results, Line(game, s, device, rate)) for s in SETTINGS}
    longest = max((step for line in lines.values() for step in line), default=0)
    unit, name = (MILLION, "million") if longest >= MILLION else (THOUSAND, "thousand")
    draw_lines(panel, {s: _per(unit, line) for s, line in lines.items()}, markers=False)
    panel.set_xlabel(f"{name} steps")
    merged = [step for setting in SETTINGS[1:] for step in lines[setting]]
    panel.set_xlim(0, (max(merged) if device == WEAK and merged else longest) / unit)


def _per(unit: int, line: Curve) -> Curve:
    return {step / unit: found for step, found in line.items()}
