"""How all figures of studies draw: lines with bands, letters, one legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.experiment.figures.median_range import Spread

# Okabe and Ito's colours, which colour-blind people can tell apart; markers for print in grey.
STYLES: Mapping[str, dict[str, Any]] = {
    "isolated": {"color": "#7f7f7f", "marker": "s", "linestyle": (0, (4, 2))},
    "homogeneous": {"color": "#E69F00", "marker": "^", "linestyle": (0, (1, 1))},
    "heterogeneous": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "without branch dropout": {"color": "#D55E00", "marker": "D", "linestyle": (0, (4, 2))},
}
KEY = "median; band: lowest to highest"
FORMATS = ("png", "svg")
Curve = Mapping[Any, Spread]


def draw_lines(panel: Any, lines: Mapping[str, Curve], *, markers: bool) -> None:
    for name, line in lines.items():
        if not line:
            continue
        style = STYLES[name] if markers else STYLES[name] | {"marker": ""}
        spreads = list(line.values())
        lowest, highest = [s.lowest for s in spreads], [s.highest for s in spreads]
        panel.plot(list(line), [s.median for s in spreads], label=name, markersize=4, **style)
        panel.fill_between(list(line), lowest, highest, color=style["color"], alpha=0.2, lw=0)
        if len(line) == 1:  # a band of no width
            panel.vlines(list(line), lowest, highest, color=style["color"], alpha=0.5, lw=3)


def share_heights(panels: Sequence[Any]) -> None:
    """The same scale for all, so that panels can be compared."""
    limits = [panel.get_ylim() for panel in panels]
    low, high = min(a for a, _ in limits), max(b for _, b in limits)
    for panel in panels:
        panel.set_ylim(low, high)


def set_title(panel: Any, letter: str, text: str) -> None:
    panel.set_title(f"({letter}) {text}", fontsize=9, loc="left")


def save(figure: Any, path: Path) -> list[Path]:
    files = [path.with_suffix(f".{kind}") for kind in FORMATS]
    for file in files:
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
