"""What all figures of studies have in common: lines with bands, letters, file formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.experiment.figures.median_range import MedianRange

# Okabe and Ito's colours, which colour-blind people can distinguish; markers for grey prints.
STYLES: Mapping[str, dict[str, Any]] = {
    "isolated": {"color": "#7f7f7f", "marker": "s", "linestyle": (0, (4, 2))},
    "homogeneous": {"color": "#E69F00", "marker": "^", "linestyle": (0, (1, 1))},
    "heterogeneous": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "without branch dropout": {"color": "#D55E00", "marker": "D", "linestyle": (0, (4, 2))},
}
KEY = "median; band: lowest to highest"
FORMATS = ("png", "svg")
Curve = Mapping[Any, MedianRange]


def draw_lines(panel: Any, lines: Mapping[str, Curve], *, markers: bool) -> None:
    """Draws every curve as a line of medians and a band from the lowest to the highest value."""
    for name, line in lines.items():
        if not line:
            continue
        style = STYLES[name] if markers else STYLES[name] | {"marker": ""}
        ranges = list(line.values())
        lowest, highest = [s.lowest for s in ranges], [s.highest for s in ranges]
        panel.plot(list(line), [s.median for s in ranges], label=name, markersize=4, **style)
        panel.fill_between(list(line), lowest, highest, color=style["color"], alpha=0.2, lw=0)
        if len(line) == 1:  # its band would have no width
            panel.vlines(list(line), lowest, highest, color=style["color"], alpha=0.5, lw=3)


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
