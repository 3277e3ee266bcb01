"""The paper's figure of reinforcement learning.

For every game test scores over steps, on the powerful and the weak device:

    (a, b)  first game, equal rates             (g, h)  second game
    (c, d)  the weak device at half the rate    (i, j)  third game
    (e, f)  at a quarter

What there are no results of is left out, and letters stay without gaps. Scores are means over a
sliding window of test episodes; lines are medians over seeds, bands go from the lowest to the
highest. The weak device's panel ends where its steps end in a fleet, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from toolkit.experiment.cell import DEVICES, MODES, WEAK
from toolkit.experiment.figures.drawing import KEY, Curve, draw_lines, set_title, share_heights
from toolkit.experiment.figures.players_summary import (
    Line,
    Played,
    games,
    learning_curve,
    weak_rates,
)

MILLION, THOUSAND = 1_000_000, 1_000


def draw_players(results: Sequence[Played]) -> Any:
    """The first game on the left, the others on the right."""
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
    for alike in panels.values():
        share_heights(alike)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    style = {"title": KEY, "frameon": False}
    figure.legend(handles, labels, loc="outside lower center", ncols=3, **style)
    return figure


def _draw(panel: Any, results: Sequence[Played], game: str, device: str, rate: float) -> None:
    panel.set_axis_on()
    panel.grid(alpha=0.3)
    lines = {mode: learning_curve(results, Line(game, mode, device, rate)) for mode in MODES}
    longest = max((step for line in lines.values() for step in line), default=0)
    unit, name = (MILLION, "million") if longest >= MILLION else (THOUSAND, "thousand")
    draw_lines(panel, {mode: _per(unit, line) for mode, line in lines.items()}, markers=False)
    panel.set_xlabel(f"{name} steps")
    merged = [step for mode in MODES[1:] for step in lines[mode]]
    panel.set_xlim(0, (max(merged) if device == WEAK and merged else longest) / unit)


def _per(unit: int, line: Curve) -> Curve:
    return {step / unit: spread for step, spread in line.items()}
