"""Which devices get a pack, and in which order: pure.

The first wave is one device, and each is twice as large as the one before, so that a bad pack meets
few devices and a good one reaches many soon.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence

from toolkit.errors import RolloutError

ALL = "all"
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%")


def chosen(to: str, running: Sequence[str], version: int) -> list[str]:
    """Returns the devices that `to` means: names with commas, a part as 10%, or all that run.

    The devices of a part follow from the version: another pack begins with others.
    """
    if percent := _PERCENT.fullmatch(to):
        part = float(percent[1]) / 100
        if not 0 < part <= 1:
            raise RolloutError(f"--to {to} is not a part of the fleet: say 1% to 100%.")
        return _shuffled(running, version)[: math.ceil(part * len(running))]
    if to == ALL:
        return _shuffled(running, version)
    named = list(dict.fromkeys(filter(None, to.split(","))))
    if missing := [name for name in named if name not in running]:
        raise RolloutError(
            f"{missing[0][:80]} does not run from a pack at the moment; toolkit fleet ls shows "
            "what each device is doing."
        )
    return named


def waves(devices: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields one device, then two, then four, …"""
    begin, size = 0, 1
    while begin < len(devices):
        yield tuple(devices[begin : begin + size])
        begin, size = begin + size, 2 * size


def _shuffled(devices: Sequence[str], version: int) -> list[str]:
    return sorted(devices, key=lambda name: hashlib.sha256(f"{version}/{name}".encode()).digest())
