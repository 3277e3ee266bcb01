"""The picture of a fleet learning: what each device reaches in each mode, and how it gets there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.fleet.local import Point

COLOURS = {"isolated": "#9a9a9a", "homogeneous": "#e08a3c", "heterogeneous": "#2b6cb0"}
Results = Mapping[str, Mapping[str, Sequence[Point]]]  # mode → device → curve


def draw(results: Results, devices: Sequence[str], title: str, path: Path) -> None:
    """One panel for each device, and bars that compare the ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * (len(devices) + 1), 3.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(devices) + 1)
    for panel, device in zip(panels, devices, strict=False):
        for mode, curves in results.items():
            points = curves[device]
            panel.plot(
                [p.round for p in points],
                [100 * p.accuracy for p in points],
                color=COLOURS[mode],
                label=mode,
            )
        panel.set(title=device, xlabel="round", ylim=(0, 100))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy (%)")
    panels[0].legend(fontsize=8, loc="lower right")
    _bars(panels[-1], results, devices)
    figure.suptitle(title)
    figure.savefig(path)


def _bars(panel: object, results: Results, devices: Sequence[str]) -> None:
    width = 0.8 / len(results)
    lowest = min(c[d][-1].accuracy for c in results.values() for d in devices)
    for offset, (mode, curves) in enumerate(results.items()):
        places = [index + (offset - 1) * width for index in range(len(devices))]
        ends = [100 * curves[device][-1].accuracy for device in devices]
        bars = panel.bar(places, ends, width, color=COLOURS[mode], label=mode)  # type: ignore[attr-defined]
        panel.bar_label(bars, fmt="%.0f", fontsize=7)  # type: ignore[attr-defined]
    panel.set_xticks(range(len(devices)), devices, fontsize=8)  # type: ignore[attr-defined]
    panel.set(title="at the end", ylim=(max(0, 100 * lowest - 15), 102))  # type: ignore[attr-defined]
