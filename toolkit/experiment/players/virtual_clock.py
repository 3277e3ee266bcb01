"""Whose turn it is among devices that nobody waits for, by the time that their rounds would take.

Time is counted in steps of the powerful device. What a device learns in a round depends only on
the θ that it began with, so rounds may be computed one after the other, each when it would have
ended on devices of such rates: the order of merges, hence every number, is the same in every run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_LOOK = 0.2  # seconds between two looks whether somebody wants us to stop


@dataclass
class _Place:
    """Where a device is."""

    period: float  # that one of its rounds takes
    left: int  # rounds that count
    end: float = 0.0  # of the round that it takes next
    ready: bool = False  # it has the θ for that round; nothing of its last one is on the way


class Turns:
    """Devices take one round after the other; the next is the one whose round ends first."""

    def __init__(self, rounds: Mapping[str, tuple[float, int]]) -> None:
        """By device: how long its rounds take, and how many of them count."""
        self._places = {name: _Place(period, left) for name, (period, left) in rounds.items()}
        self._changed = threading.Condition()

    def arrive(self, device: str) -> None:
        """The device has received θ, at the beginning or for its last update."""
        with self._changed:
            place = self._places[device]
            place.end += place.period
            place.ready = True
            self._changed.notify_all()

    def take(self, device: str, check_stop: Callable[[], None]) -> bool:
        """Waits for the device's turn; False if none of its rounds counts any more, and nor does
        any of the others'."""
        place = self._places[device]
        with self._changed:
            while not self._is_next(device):
                self._changed.wait(_LOOK)
                check_stop()
            counts = place.left > 0
            place.left -= 1
            place.ready = False
            return counts

    def _is_next(self, device: str) -> bool:
        if not all(place.ready for place in self._places.values()):
            return False
        waiting = {name: p.end for name, p in self._places.items() if p.left > 0}
        return not waiting or device == min(waiting, key=lambda name: (waiting[name], name))
