"""The charts of the page, as options of ECharts; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from toolkit.dashboard import colours
from toolkit.observing.curves import Curve
from toolkit.observing.status import LOWER_IS_BETTER, RoundStatus

MOST_LINES = 12  # devices that have a line each; of more, the groups are shown
SHOWN_ROUNDS = 60
INK, EDGE = "#7b8490", "rgba(128, 137, 149, 0.25)"  # legible in the light and in the dark
FRAME = {"backgroundColor": "transparent", "animation": False}


@dataclass(frozen=True, eq=False)
class Line:
    """A curve with the name of its device, and the group that it belongs to."""

    name: str
    group: str
    curve: Curve


def learning(lines: Sequence[Line], measure: str) -> dict[str, Any]:
    """Returns the curves of devices, or of groups if there are too many devices.

    A device's first score, of the model that it came with, is a thin line at the height of it.
    """
    shown = [line for line in lines if line.curve.points]
    if len(shown) <= MOST_LINES:
        series = [s for i, line in enumerate(shown) for s in _device(line, i, measure)]
    else:
        groups = sorted({line.group for line in shown})
        series = [
            s
            for i, group in enumerate(groups)
            for s in _group(group, [n for n in shown if n.group == group], i, measure)
        ]
    percent = "accuracy" in measure
    axis = "value" if measure not in LOWER_IS_BETTER else "log"
    return {
        **FRAME,
        "legend": {"type": "scroll", "top": 0, "textStyle": {"color": INK}},
        "grid": {"left": 8, "right": 20, "top": 58, "bottom": 28, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True, "order": "valueDesc"},
        "xAxis": _axis("round") | {"type": "value", "minInterval": 1, "max": "dataMax"},
        "yAxis": _axis("")
        | {"type": axis, "scale": True, "name": f"{measure}{' (%)' if percent else ''}"},
        "series": series,
    }


def _device(line: Line, index: int, measure: str) -> list[dict[str, Any]]:
    colour, dash = colours.line(index)
    points = [[n, _shown(measure, value)] for n, value in line.curve.points]
    return [
        _series(line.name, points, colour, dash)
        | {
            "markLine": {
                "silent": True,
                "symbol": "none",
                "label": {"show": False},
                "lineStyle": {"color": colour, "width": 1, "type": "dotted", "opacity": 0.45},
                "data": [{"yAxis": points[0][1]}],
            }
        }
    ]


def _group(name: str, lines: Sequence[Line], index: int, measure: str) -> list[dict[str, Any]]:
    """The mean of a group by round, with its lowest and highest device as thin lines."""
    colour, dash = colours.line(index)
    by_round: dict[int, list[float]] = {}
    for line in lines:
        for number, value in line.curve.points:
            by_round.setdefault(number, []).append(_shown(measure, value))
    rows = sorted(by_round.items())
    title = f"{name or 'no profile'} ({len(lines)})"
    mean = _series(title, [[n, round(fmean(values), 4)] for n, values in rows], colour, dash)
    edges = [
        _series(title, [[n, edge(values)] for n, values in rows], colour, "dotted")
        | {"lineStyle": {"color": colour, "width": 1, "type": "dotted", "opacity": 0.6}}
        | {"tooltip": {"show": False}}
        for edge in (min, max)
    ]
    return [mean, *edges]


def _series(name: str, points: list[list[float]], colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "line",
        "name": name,
        "data": points,
        "showSymbol": len(points) < 3,
        "symbolSize": 6,
        "lineStyle": {"color": colour, "width": 2, "type": dash},
        "itemStyle": {"color": colour},
        "emphasis": {"focus": "series"},
    }


def rounds(merges: Sequence[RoundStatus]) -> dict[str, Any]:
    """Returns a bar for each of the newest rounds: its time, and who was late."""
    shown = merges[-SHOWN_ROUNDS:]
    late = [
        {
            "value": round(merge.seconds, 3),
            "itemStyle": {
                "color": colours.VERMILION if merge.late else colours.BLUE,
                "decal": {"symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [3, 3]}
                if merge.late
                else None,
            },
            "late": ", ".join(merge.late) or "nobody",
            "devices": merge.devices,
        }
        for merge in shown
    ]
    return {
        **FRAME,
        "aria": {"enabled": True, "decal": {"show": False}},
        "grid": {"left": 8, "right": 12, "top": 28, "bottom": 28, "containLabel": True},
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            ":formatter": "(p) => `round ${p[0].name}: ${p[0].value} s, "
            "${p[0].data.devices} devices<br>late: ${p[0].data.late}`",
        },
        "xAxis": _axis("round")
        | {"type": "category", "data": [str(merge.number) for merge in shown]},
        "yAxis": _axis("") | {"type": "value", "name": "seconds"},
        "series": [{"type": "bar", "data": late, "barMaxWidth": 22}],
    }


def refusals(by_reason: dict[str, int]) -> dict[str, Any]:
    """Returns a bar for each reason, the most frequent one on top."""
    rows = sorted(by_reason.items(), key=lambda row: row[1])
    return {
        **FRAME,
        "grid": {"left": 8, "right": 36, "top": 8, "bottom": 8, "containLabel": True},
        "xAxis": {"type": "value", "show": False},
        "yAxis": _axis("") | {"type": "category", "data": [reason for reason, _ in rows]},
        "series": [
            {
                "type": "bar",
                "data": [number for _, number in rows],
                "barMaxWidth": 18,
                "itemStyle": {"color": colours.ORANGE},
                "label": {"show": True, "position": "right", "color": INK},
            }
        ],
    }


def spark_path(values: Sequence[float], width: float = 90, height: float = 22) -> str:
    """Returns a line through the values as the path of an SVG."""
    if len(values) < 2:
        return ""
    least, most = min(values), max(values)
    span = most - least or 1.0
    step = width / (len(values) - 1)
    places = (
        (i * step, height - 2 - (height - 4) * (value - least) / span)
        for i, value in enumerate(values)
    )
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _shown(measure: str, value: float) -> float:
    return round(100 * value, 3) if "accuracy" in measure else round(value, 6)


def _axis(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "nameLocation": "middle" if name == "round" else "end",
        "nameGap": 24 if name == "round" else 10,
        "nameTextStyle": {"color": INK, "align": "left" if not name else "center"},
        "axisLabel": {"color": INK},
        "axisLine": {"lineStyle": {"color": EDGE}},
        "splitLine": {"lineStyle": {"color": EDGE}, "show": name != "round"},
    }
