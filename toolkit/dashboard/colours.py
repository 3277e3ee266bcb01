"""Colours that people tell apart whatever colours they see (Okabe and Ito, 2008), in both themes.

Nothing is said by a colour alone: activities have symbols, and lines have dashes and names.
"""

from __future__ import annotations

from toolkit.observing.status import Activity

BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, GREY = "#cc79a7", "#56b4e9", "#8a8f98"
LINES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
DASHES = ("solid", "dashed", "dotted")
ACTIVITIES = {
    Activity.TRAINING: GREEN,
    Activity.WAITING: BLUE,
    Activity.PAUSED: ORANGE,
    Activity.OFFLINE: VERMILION,
    Activity.UNKNOWN: GREY,
}


def line(index: int) -> tuple[str, str]:
    """Returns the colour and the dash of a line; the first 18 all differ."""
    return LINES[index % len(LINES)], DASHES[index // len(LINES) % len(DASHES)]
