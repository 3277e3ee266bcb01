"""The last update of every device, in scalars: what an asynchronous update is compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.merging.bounds import Bounds, Share, Size, grouped, shares
from broker.merging.coordinator import Entry


@dataclass(frozen=True)
class Counted:
    """What one device's update counts in the tensors of a group."""

    names: Sequence[str]
    share: Share
    total: float  # of what all devices count that hold these tensors


@dataclass
class _Group:
    """Tensors that the same devices hold, and by device n_k and ‖Δ_k‖ over them."""

    names: Sequence[str]
    samples: dict[str, int] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)

    def put(self, device: str, entry: Entry | None) -> None:
        self.samples.pop(device, None)
        self.norms.pop(device, None)
        if entry is not None and self.names[0] in entry.tensors:
            squares = dict(zip(entry.tensors, entry.squares, strict=False))
            self.samples[device] = entry.samples
            self.norms[device] = Size(entry.samples, squares=squares).norm(self.names)


class LastUpdates:
    """Follows a coordinator's ledger, so that an update costs little in a large fleet.

    Everything here can be derived from the ledger, and nothing depends on the order of its
    entries: a coordinator that was restored from its snapshot counts exactly as before.
    """

    def __init__(self, ledger: Mapping[str, Entry]) -> None:
        self._entries = dict(ledger)
        self._slices = Counter(entry.tensors for entry in ledger.values())
        self._groups: list[_Group] = []
        self._regroup()

    def put(self, device: str, entry: Entry | None) -> None:
        """Replaces the last update of a device; None: it has sent none."""
        before = set(self._slices)
        last = self._entries.pop(device, None)
        if last is not None:
            self._slices -= Counter([last.tensors])
        if entry is not None:
            self._entries[device] = entry
            self._slices[entry.tensors] += 1
        if set(self._slices) != before:
            self._regroup()
            return
        for group in self._groups:
            group.put(device, entry)

    def counted(self, device: str, bounds: Bounds, *, weighted: bool) -> list[Counted]:
        """Returns what the device's update counts in each group of its tensors."""
        counted = []
        for group in self._groups:
            if device not in group.samples:
                continue
            found = shares(group.samples, group.norms, bounds, weighted=weighted)
            # fsum: the same in whatever order the devices are.
            total = math.fsum(share.counts for share in found.values())
            counted.append(Counted(group.names, found[device], total))
        return counted

    def _regroup(self) -> None:
        slices = {str(k): names for k, names in enumerate(self._slices)}
        self._groups = [_Group(names) for names in grouped(slices).values()]
        for group in self._groups:
            for device, entry in self._entries.items():
                group.put(device, entry)
