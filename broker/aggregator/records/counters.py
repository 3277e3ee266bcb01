"""What an aggregator counts, and other numbers about it to watch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from broker.log import Log
from broker.merging.coordinator import Limited
from broker.merging.presence import Presence
from broker.transport.transport import Transport


@dataclass
class Counters:
    """What an aggregator has done since it started."""

    round: int = 0
    devices_present: int = 0
    devices_waiting: int = 0
    rounds_merged: int = 0
    rounds_extended: int = 0
    births_accepted: int = 0
    updates_accepted: int = 0
    updates_duplicate: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    tensors_held_back: int = 0
    devices_silent: int = 0
    states_overwritten: int = 0
    updates_clipped: int = 0
    weights_bounded: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    packets_dropped: int = 0
    merge_seconds: float = 0.0

    def values(self) -> dict[str, float]:
        """Returns the numbers by name; refusals also have their reason as a label."""
        plain = {k: v for k, v in vars(self).items() if k != "refused"}
        return plain | {f'refused{{reason="{r}"}}': n for r, n in sorted(self.refused.items())}

    def take_stock(self, round: int, present: Presence, transport: Transport) -> None:
        """Takes over what others count."""
        self.round = round
        self.devices_present = len(present)
        self.devices_waiting = present.waiting
        self.received_bytes = transport.received_bytes
        self.sent_bytes = transport.sent_bytes
        self.packets_dropped = transport.dropped

    def count_limited(self, limited: Limited, round: int, log: Log) -> None:
        """Counts and logs devices whose updates were limited."""
        self.updates_clipped += len(limited.clipped)
        self.weights_bounded += len(limited.bounded)
        if limited.clipped or limited.bounded:
            clipped, bounded = list(limited.clipped), list(limited.bounded)
            log.event("limited", round=round, clipped=clipped, bounded=bounded)
