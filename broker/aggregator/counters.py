"""Counters and other numbers to watch, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIX = "stemshare_"


@dataclass
class Counters:
    """What an aggregator has done since it started."""

    round: int = 0
    devices_present: int = 0
    rounds_merged: int = 0
    rounds_extended: int = 0
    births_accepted: int = 0
    updates_accepted: int = 0
    updates_duplicate: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    tensors_held_back: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    packets_dropped: int = 0
    merge_seconds: float = 0.0

    def values(self) -> dict[str, float]:
        """By name, with its label where it has one."""
        plain = {k: v for k, v in vars(self).items() if k != "refused"}
        return plain | {f'refused{{reason="{r}"}}': n for r, n in sorted(self.refused.items())}


def to_text(values: Mapping[str, float]) -> str:
    return "".join(f"{PREFIX}{name} {value}\n" for name, value in values.items())


def from_text(text: str) -> dict[str, float]:
    """What `to_text` was given."""
    pairs = (line.removeprefix(PREFIX).rpartition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in pairs}
