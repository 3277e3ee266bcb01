"""What an aggregator reports of its devices and rounds, for whoever watches the fleet; pure.

    devices   by name: {"seen": ms, "there": bool, "accepted": n, "late": n, "refused": {reason: n},
              "round": of the last update that counted, "behind": merges since that one's θ_shared,
              "samples": n, "bytes": of that update}
    rounds    by number, the newest ones: {"began": ms, "closed": ms, "devices": n,
              "late": [device, …]}

A device is late in a round that closed without it: it was waited for until the deadline, or its
update came afterwards.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.errors import NameRefused
from broker.merging.coordinator import Settings, State
from broker.protocol.messages import FleetReport, Reason, Update
from broker.protocol.topics import check_name

MOST_DEVICES = 2000  # those heard last; a report stays below 1 MiB
MOST_ROUNDS = 60
MOST_LATE = 40  # devices named in one round


@dataclass
class _Device:
    seen: int
    there: bool = False
    round: int = -1
    behind: int = 0
    samples: int = 0
    bytes: int = 0
    accepted: int = 0
    late: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass
class _Round:
    began: int
    closed: int
    devices: int
    late: list[str]


class Report:
    """Notes what happens; `changed` says whether that is more than `message` returned last."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._devices: OrderedDict[str, _Device] = OrderedDict()  # the one heard last is last
        self._rounds: OrderedDict[int, _Round] = OrderedDict()
        self._began = self._now()
        self.changed = True

    def there(self, device: str) -> None:
        """A birth was accepted."""
        if found := self._heard(device):
            found.there = True

    def gone(self, device: str) -> None:
        """A device has left, or its will was sent."""
        if (found := self._devices.get(device)) and found.there:
            found.there = False
            self.changed = True

    def forget(self, device: str) -> None:
        """A device was removed."""
        self.changed |= self._devices.pop(device, None) is not None

    def accepted(self, update: Update, *, bytes: int, behind: int) -> None:
        if found := self._heard(update.device):
            found.there = True
            found.accepted += 1
            found.round, found.samples = update.round, update.samples
            found.bytes, found.behind = bytes, behind

    def refused(self, device: str, reason: Reason, round: int = -1) -> None:
        """A birth or an update was refused; `round` is the update's, if it can be read."""
        if not (found := self._heard(device)):
            return
        found.refused[str(reason)] += 1
        # The update of round r started from the θ_shared of round r, and makes that of r + 1.
        if reason is Reason.LATE and (missed := self._rounds.get(round + 1)):
            self._late(missed, device, found)

    def closed(self, round: int, devices: int, silent: Sequence[str]) -> None:
        """θ_shared of `round` was made from so many updates; `silent` ones were waited for."""
        now = self._now()
        merged = _Round(self._began, now, devices, [])
        for device in silent:
            if found := self._devices.get(device):
                self._late(merged, device, found)
        self._rounds[round] = merged
        while len(self._rounds) > MOST_ROUNDS:
            self._rounds.popitem(last=False)
        self._began = now
        self.changed = True

    def message(self, state: State, settings: Settings) -> FleetReport:
        self.changed = False
        return FleetReport(
            run=state.run,
            round=state.round,
            time_ms=self._now(),
            began_ms=self._began,
            deadline_ms=min(2**53, int(1000 * settings.deadline_seconds)),
            quorum=settings.quorum,
            last_round=settings.rounds or 0,
            devices={name: _plain(device) for name, device in self._devices.items()},
            rounds={str(number): vars(merged) for number, merged in self._rounds.items()},
        )

    def _heard(self, device: str) -> _Device | None:
        """Returns what is known of a device that says something; None if it cannot be called so."""
        try:
            check_name("device", device)
        except NameRefused:
            return None
        found = self._devices.setdefault(device, _Device(0))
        self._devices.move_to_end(device)
        if len(self._devices) > MOST_DEVICES:
            self._devices.popitem(last=False)
        found.seen, self.changed = self._now(), True
        return found

    def _late(self, merged: _Round, name: str, device: _Device) -> None:
        if name not in merged.late:
            device.late += 1
            if len(merged.late) < MOST_LATE:
                merged.late.append(name)

    def _now(self) -> int:
        return int(1000 * self._wall_clock())


def _plain(device: _Device) -> dict[str, Any]:
    return vars(device) | {"refused": dict(device.refused)}
