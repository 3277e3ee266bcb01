"""The paper's figure of supervised learning, and the ablation of branch dropout.

(a, b) share-first and (c, d) cascading: final accuracy over the weak device's fraction of the data,
on the powerful and the weak device; (e, f) learning curves. Lines are medians over seeds, bands
range from the lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.experiment.cell import DEVICES, HETEROGENEOUS, POWERFUL, SETTINGS
from toolkit.experiment.figures.drawing import KEY, Curve, draw_lines, set_title, share_y_axis
from toolkit.experiment.figures.supervised_summary import (
    Line,
    SupervisedResult,
    final_accuracies,
    fractions,
    learning_curve,
    topologies,
)
from toolkit.experiment.figures.supervised_table import TITLES

CURVE_FRACTION = 0.2  # of the data on the weak device, in the paper's learning curves


def draw_study(results: Sequence[SupervisedResult]) -> Any:
    """Draws a row for each topology; the last row also has the learning curves."""
    from matplotlib.figure import Figure

    studied = topologies(results) or ["cascading"]
    figure = Figure(figsize=(11, 2.6 * len(studied) + 0.5), dpi=150, layout="constrained")
    grid = figure.subplots(len(studied), 4, squeeze=False)
    letters = iter("abcdef")
    chosen = min(fractions(results), key=lambda fraction: abs(fraction - CURVE_FRACTION))
    for row, topology in zip(grid, studied, strict=True):
        for panel, device in zip(row[:2], reversed(DEVICES), strict=True):
            lines = {s: final_accuracies(results, Line(s, topology, device)) for s in SETTINGS}
            _draw_finals(panel, lines, device)
            set_title(panel, next(letters), f"{TITLES[topology]}: {device}")
        last = topology == studied[-1]
        for panel, device in zip(row[2:], reversed(DEVICES), strict=True):
            if not last:
                panel.set_axis_off()
                continue
            curves = {
                s: learning_curve(results, Line(s, topology, device), chosen) for s in SETTINGS
            }
            draw_lines(panel, curves, markers=False)
            panel.set_xlabel("round")
            holds = 1 - chosen if device == POWERFUL else chosen
            set_title(panel, next(letters), f"{device} with {100 * holds:g} % of the data")
    for panel in (panel for row in grid for panel in row if panel.axison):
        panel.grid(alpha=0.3)
    for panels in ([*grid[:, 0], *grid[:, 1]], list(grid[-1, 2:])):
        share_y_axis(panels)
    for row in grid:
        row[0].set_ylabel("test accuracy (%)")
    _legend(figure, grid)
    return figure


def draw_ablation(results: Sequence[SupervisedResult]) -> Any:
    """Draws heterogeneous cascades with and without branch dropout."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = {HETEROGENEOUS: True, "without branch dropout": False}
    for panel, device, letter in zip(panels, reversed(DEVICES), "ab", strict=True):
        lines = {
            name: final_accuracies(results, Line(HETEROGENEOUS, "cascading", device, on))
            for name, on in names.items()
        }
        _draw_finals(panel, lines, device)
        set_title(panel, letter, f"cascading: {device}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy (%)")
    handles, _ = panels[0].get_legend_handles_labels()
    labels = ["with branch dropout", "without"][: len(handles)]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_finals(panel: Any, lines: Mapping[str, Curve], device: str) -> None:
    """Draws accuracies over the weak device's fraction; the labels state this device's own."""
    draw_lines(panel, lines, markers=True)
    ticks = sorted({fraction for line in lines.values() for fraction in line})
    held = [1 - fraction if device == POWERFUL else fraction for fraction in ticks]
    panel.set_xticks(ticks, [f"{100 * part:g}" for part in held])
    panel.set_xlabel(f"data on the {device} device (%)")


def _legend(figure: Any, grid: Any) -> None:
    """Puts the legend into the empty corner, as in the paper, or below if there is none."""
    handles, labels = grid[0][0].get_legend_handles_labels()
    style = {"title": KEY, "frameon": False}
    if grid[0][2].axison:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, **style)
    else:
        corner = grid[0][2].legend(handles, labels, loc="center left", **style)
        corner.set_in_layout(False)  # it may extend into the empty panel next to it
