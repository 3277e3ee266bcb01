"""What all figures of studies have in common: the style of each arm, lines with bands, legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.experiment.cell import ANY, HETEROGENEOUS, HOMOGENEOUS, ISOLATED
from toolkit.experiment.figures.arms import SHARE_FIRST, Arm
from toolkit.experiment.figures.median_range import MedianRange

# Okabe and Ito's colours, which colour-blind people can distinguish; line styles and markers say
# the same in grey prints. Fleets in which each trains its own network are blue, in three shades.
COLOURS = {ISOLATED: "#7f7f7f", HOMOGENEOUS: "#E69F00", HETEROGENEOUS: "#0072B2"}
SHADES = {SHARE_FIRST: "#56B4E9", "two-loss": "#08306B"}
TOPOLOGIES: Mapping[tuple[str, bool], dict[str, Any]] = {
    (ANY, True): {"linestyle": (0, (1, 1)), "marker": "s"},
    (SHARE_FIRST, True): {"linestyle": "-.", "marker": "^"},
    ("cascading", True): {"linestyle": "--", "marker": "o"},
    ("cascading", False): {"linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "x"},
    ("two-loss", True): {"linestyle": "-", "marker": "D"},
}
KEY = "median; band: lowest to highest"
FORMATS = ("png", "svg")
LEGEND_COLUMNS = 4
Curve = Mapping[Any, MedianRange]


def style_of(arm: Arm) -> dict[str, Any]:
    """Colour by setting, line style and marker by topology."""
    colour = COLOURS[arm.setting]
    if arm.setting == HETEROGENEOUS:
        colour = SHADES.get(arm.topology, colour)
    return {"color": colour, **TOPOLOGIES[arm.topology, arm.branch_dropout]}


def draw_curves(panel: Any, curves: Mapping[Arm, Curve]) -> None:
    """Draws every curve as a line of medians and a band from the lowest to the highest value."""
    for arm, curve in curves.items():
        if curve:
            style = style_of(arm) | {"marker": ""}
            ranges = list(curve.values())
            panel.plot(list(curve), [r.median for r in ranges], label=arm.name, **style)
            low, high = [r.lowest for r in ranges], [r.highest for r in ranges]
            panel.fill_between(list(curve), low, high, color=style["color"], alpha=0.15, lw=0)


def draw_points(panel: Any, lines: Mapping[Arm, Curve], positions: Sequence[Any]) -> None:
    """Draws medians over positions that are equally far apart, and their ranges as bars.

    Arms stand side by side, so that none hides another; one without a point keeps its place.
    """
    panel.margins(y=0.1)
    for number, (arm, line) in enumerate(lines.items()):
        if not line:
            continue
        shift = 0.6 * ((number + 0.5) / len(lines) - 0.5)
        at = [index + shift for index, position in enumerate(positions) if position in line]
        ranges = [line[position] for position in positions if position in line]
        style = style_of(arm)
        panel.plot(at, [r.median for r in ranges], label=arm.name, markersize=4, lw=1, **style)
        low, high = [r.lowest for r in ranges], [r.highest for r in ranges]
        panel.vlines(at, low, high, color=style["color"], lw=1.5)
    panel.set_xlim(-0.5, len(positions) - 0.5)


def draw_legend(figure: Any, panels: Sequence[Any]) -> None:
    """Puts one legend below, with every arm of any panel as the first of them shows it."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    columns = min(LEGEND_COLUMNS, len(found))
    style = {"title": KEY, "frameon": False, "ncols": columns, "fontsize": 8, "title_fontsize": 8}
    # Long enough handles show which dashes a line has.
    figure.legend(found.values(), found, loc="outside lower center", handlelength=3.5, **style)


def share_y_axis(panels: Sequence[Any]) -> None:
    """Gives all panels the same y-axis, so that they can be compared."""
    limits = [panel.get_ylim() for panel in panels]
    low, high = min(a for a, _ in limits), max(b for _, b in limits)
    for panel in panels:
        panel.set_ylim(low, high)


def set_title(panel: Any, letter: str, text: str) -> None:
    """Sets a title that begins with the panel's letter."""
    panel.set_title(f"({letter}) {text}", fontsize=9, loc="left")


def save(figure: Any, path: Path) -> list[Path]:
    """Writes the figure in all formats; returns the files."""
    files = [path.with_suffix(f".{kind}") for kind in FORMATS]
    for file in files:
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
