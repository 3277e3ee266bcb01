"""A virtual clock for devices that do not wait for each other.

Virtual time is counted in steps of the powerful device. What a device learns in a round depends
only on the θ_shared with which the round starts. So rounds may be computed one after the other, in
the order in which they would end on devices of the given speeds. The order of merges, and with it
every number, is then the same in every run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_POLL_SECONDS = 0.2  # between two checks whether the fleet is being stopped


@dataclass
class _Schedule:
    """The position of one device in virtual time."""

    period: float  # duration of one of its rounds
    remaining: int  # rounds that still count
    end: float = 0.0  # of its next round
    ready: bool = False  # it has the θ_shared for that round; no update of it is on the way


class VirtualClock:
    """Lets one device after the other train a round: always the one whose round ends first."""

    def __init__(self, rounds: Mapping[str, tuple[float, int]]) -> None:
        """`rounds` has the duration and the number of the rounds of each device."""
        self._schedules = {
            name: _Schedule(period, remaining) for name, (period, remaining) in rounds.items()
        }
        self._changed = threading.Condition()

    def mark_ready(self, device: str) -> None:
        """The device has received θ_shared: the first one, or the answer to its last update."""
        with self._changed:
            schedule = self._schedules[device]
            schedule.end += schedule.period
            schedule.ready = True
            self._changed.notify_all()

    def wait_for_round(self, device: str, check_stop: Callable[[], None]) -> bool:
        """Blocks until the next round is this device's.

        Returns False if all rounds of all devices are trained. `check_stop` is called while the
        device waits; an error that it raises ends the waiting.
        """
        schedule = self._schedules[device]
        with self._changed:
            while not self._is_next(device):
                self._changed.wait(_POLL_SECONDS)
                check_stop()
            counts = schedule.remaining > 0
            schedule.remaining -= 1
            schedule.ready = False
            return counts

    def _is_next(self, device: str) -> bool:
        if not all(schedule.ready for schedule in self._schedules.values()):
            return False
        ends = {name: s.end for name, s in self._schedules.items() if s.remaining > 0}
        return not ends or device == min(ends, key=lambda name: (ends[name], name))
