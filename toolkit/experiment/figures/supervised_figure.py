"""The paper's figure of supervised learning, with all arms of a study in every panel.

(a, b) final accuracy or error over the weak device's fraction of the data, on the powerful and the
weak device; (c, d) learning curves. Lines are medians over seeds, bars and bands range from the
lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.experiment.cell import DEVICES
from toolkit.experiment.figures.arms import arms_of
from toolkit.experiment.figures.drawing import (
    draw_curves,
    draw_legend,
    draw_points,
    set_title,
    share_y_axis,
)
from toolkit.experiment.figures.median_range import MedianRange
from toolkit.experiment.figures.shown import shown_of
from toolkit.experiment.figures.supervised_summary import (
    SupervisedResult,
    comparisons,
    final_scores,
    fractions,
    held,
    learning_curves,
)

CURVE_FRACTION = 0.2  # of the data on the weak device, in the paper's learning curves


def draw_study(results: Sequence[SupervisedResult]) -> Any:
    """Draws final scores above learning curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.4), dpi=150, layout="constrained")
    grid = figure.subplots(2, 2)
    chosen = min(fractions(results), key=lambda fraction: abs(fraction - CURVE_FRACTION))
    for panel, device, letter in zip(grid[0], reversed(DEVICES), "ab", strict=True):
        _draw_finals(panel, results, device)
        set_title(panel, letter, f"{device}: best version")
    for panel, device, letter in zip(grid[1], reversed(DEVICES), "cd", strict=True):
        draw_curves(panel, learning_curves(results, device, chosen))
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_xlabel("round")
        set_title(panel, letter, f"{device} with {100 * held(device, chosen):g} % of the data")
    for row in grid:
        row[0].set_ylabel(shown_of(results).label)
    share_y_axis(grid[1])  # scores above lie too far apart between devices
    for panel in grid.flat:
        panel.grid(alpha=0.3)
    draw_legend(figure, list(grid.flat))
    return figure


def _draw_finals(panel: Any, results: Sequence[SupervisedResult], device: str) -> None:
    """Draws scores over the weak device's fraction; the labels state this device's own."""
    studied = fractions(results)
    found = {fraction: final_scores(results, device, fraction) for fraction in studied}
    lines = {
        arm: {f: MedianRange.of(s[arm].values()) for f, s in found.items() if arm in s}
        for arm in arms_of(comparisons(results))
    }
    draw_points(panel, lines, studied)
    panel.set_xticks(range(len(studied)), [f"{100 * held(device, part):g}" for part in studied])
    panel.set_xlabel(f"data on the {device} device (%)")
