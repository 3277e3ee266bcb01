"""Merge arithmetic: every tensor is merged across the devices that hold it.

    sum            Δ = Σ_k Δ_k                               algorithm 2 as printed
    mean           Δ = (1/K) Σ_k Δ_k                         simple averaging
    samples        Δ = Σ_k α_k Δ_k,  α_k = n_k / Σ_j n_j     the gradient over all data
    median         the middle value of each coordinate       K ≥ 3
    trimmed-mean   without the f extremes on either side     K ≥ 2f + 1, f ≥ 1
    multi-krum     mean of the K - f most central updates    K ≥ 2f + 3, f ≥ 1

K, Σ_j and f count the devices that hold the tensor. The last three are robust: they tolerate up to
f Byzantine devices (the median: fewer than half), and ignore sample counts, because a Byzantine
device can send a wrong count too. `bounds.py` limits what one update moves in the first three.
Updates were checked before (finite values, known names and shapes).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from broker.errors import MergeRefused
from broker.merging import robust
from broker.merging.bounds import Bounds, Share, Size, grouped, shares, size_of
from broker.merging.vectors import CHUNK, accumulate, scaled, small_cast_buffers
from broker.protocol.norms import squared_norms
from broker.protocol.slice import Tensors

MERGES = ("sum", "mean", "samples", "median", "trimmed-mean", "multi-krum")
_AVERAGES = ("sum", "mean", "samples")
_NEED_BYZANTINE = ("trimmed-mean", "multi-krum")

# Updates of an open round are kept until its medians are known. Beyond KEPT_BYTES they are merged
# with the medians of the devices so far, if these are ENOUGH that a minority cannot move them.
KEPT_BYTES = 256 * 2**20
ENOUGH = 9  # devices


@dataclass(frozen=True)
class MergeRule:
    """How updates become one change of θ_shared."""

    name: str
    byzantine: int = 0  # f: the number of devices that may lie; for trimmed-mean and multi-krum
    bounds: Bounds = field(default_factory=Bounds)

    def __post_init__(self) -> None:
        if self.name not in MERGES:
            raise MergeRefused(
                f"merge {self.name!r} is unknown: choose one of {', '.join(MERGES)}."
            )
        if self.name in _NEED_BYZANTINE and self.byzantine < 1:
            raise MergeRefused(
                f"merge {self.name!r} needs byzantine ≥ 1, the number of devices that may lie, "
                f"not {self.byzantine}."
            )
        if self.name not in _NEED_BYZANTINE and self.byzantine != 0:
            raise MergeRefused(
                f"merge {self.name!r} takes no number of lying devices (byzantine = "
                f"{self.byzantine}): choose one of {', '.join(_NEED_BYZANTINE)}, or byzantine = 0."
            )

    @property
    def is_robust(self) -> bool:
        """Whether the rule compares devices, and so tolerates some that lie."""
        return self.name not in _AVERAGES

    @property
    def fewest(self) -> int:
        """The number of devices that must hold a tensor for the rule to work."""
        match self.name:
            case "median":
                return 3
            case "trimmed-mean":
                return 2 * self.byzantine + 1
            case "multi-krum":
                return 2 * self.byzantine + 3
        return 1

    def check(self, devices: int) -> None:
        """Raises `MergeRefused` if a round of that many devices is too small for the rule."""
        if devices < self.fewest:
            against = f" with byzantine = {self.byzantine}" if self.byzantine else ""
            raise MergeRefused(
                f"merge {self.name!r}{against} needs at least {self.fewest} devices, "
                f"but there are {devices}."
            )


class Tally(ABC):
    """The updates of one round, added in any order, and their merge."""

    def __init__(self, rule: MergeRule) -> None:
        self.rule = rule
        self._sizes: dict[str, Size] = {}  # by device
        self._shapes: dict[str, tuple[int, ...]] = {}
        # Devices whose updates were scaled down, and whose weights were lowered, after `merged`.
        self.clipped: set[str] = set()
        self.bounded: set[str] = set()

    def add(
        self,
        device: str,
        tensors: Tensors,
        samples: int,
        squares: Mapping[str, float] | None = None,
    ) -> None:
        """Counts one device's update, or raises ValueError and counts nothing of it.

        The arrays are kept until the round is merged, and must not be changed. `squares` are their
        ‖Δ‖², if they are known.
        """
        if device in self._sizes:
            raise ValueError(f"device {device!r} is already counted in this round.")
        if samples < 1:
            raise ValueError(f"device {device!r} trained on {samples} samples: at least 1 counts.")
        for name, tensor in tensors.items():
            known = self._shapes.get(name, tensor.shape)
            if tensor.shape != known:
                raise ValueError(
                    f"device {device!r} sent tensor {name!r} with shape {tensor.shape}, "
                    f"others with {known}."
                )
        measured = squared_norms(tensors) if squares is None else squares
        self._sizes[device] = size_of(measured, samples, self.rule.bounds)
        self._shapes.update((name, tensor.shape) for name, tensor in tensors.items())
        self._take(device, {name: tensor.reshape(-1) for name, tensor in tensors.items()})

    @abstractmethod
    def _take(self, device: str, flat: Tensors) -> None: ...

    @abstractmethod
    def merged(self) -> tuple[Tensors, tuple[str, ...]]:
        """Returns Δ by tensor, and the tensors that fewer than `rule.fewest` devices hold.

        A sum too large for float32 becomes infinite; the coordinator's optimiser refuses that.
        """


def tally(rule: MergeRule, *, kept_bytes: int = KEPT_BYTES) -> Tally:
    """Returns an empty tally for one round, which keeps at most `kept_bytes` of updates."""
    return _Keeping(rule) if rule.is_robust else _Averaging(rule, kept_bytes)


@dataclass
class _Sum:
    """Σ_k w_k Δ_k of one tensor, flat, and Σ_k w_k."""

    total: npt.NDArray[np.float64]
    weight: float = 0.0


class _Averaging(Tally):
    """sum, mean, samples: one float64 total per tensor, whatever the number of devices.

    Float64 makes the result independent of the order of arrival to about 1e-15 of Σ|Δ_k|.

    Medians are known when a round closes, so its updates are kept until then: 33 MB for 200
    devices that share 41,056 numbers. What is beyond `kept_bytes` is not kept: the updates so far
    are then added, bounded by the medians over all devices so far. Without bounds by medians
    every update is added as it comes.
    """

    def __init__(self, rule: MergeRule, kept_bytes: int) -> None:
        super().__init__(rule)
        self._most_kept = kept_bytes
        self._slices: dict[str, tuple[str, ...]] = {}
        self._kept: dict[str, Tensors] = {}  # by device, in the order of arrival
        self._kept_bytes = 0
        self._sums: dict[str, _Sum] = {}
        self._unit = 0  # samples of the first device: equal counts then need no multiplication
        self._scratch = np.empty(CHUNK)

    def _take(self, device: str, flat: Tensors) -> None:
        self._unit = self._unit or self._sizes[device].samples
        self._slices[device] = tuple(sorted(flat))
        self._kept[device] = flat
        self._kept_bytes += sum(tensor.nbytes for tensor in flat.values())
        full = self._kept_bytes > self._most_kept and len(self._sizes) >= ENOUGH
        if full or not self.rule.bounds.compares:
            self._add_kept()

    def _add_kept(self) -> None:
        by_tensor = self._shares_by_tensor()
        for name in by_tensor:
            if name not in self._sums:
                self._sums[name] = _Sum(np.zeros(math.prod(self._shapes[name])))
            self._add_to(self._sums[name], name, by_tensor[name])
        self._kept, self._kept_bytes = {}, 0

    def merged(self) -> tuple[Tensors, tuple[str, ...]]:
        merged: Tensors = {}
        by_tensor = self._shares_by_tensor()
        for name, shape in sorted(self._shapes.items()):
            found = self._sums.get(name)
            if name in by_tensor:  # on a copy: more updates may come
                total = np.zeros(math.prod(shape)) if found is None else found.total.copy()
                found = _Sum(total, 0.0 if found is None else found.weight)
                self._add_to(found, name, by_tensor[name])
            assert found is not None
            divisor = 1.0 if self.rule.name == "sum" else found.weight
            change = np.empty(found.total.shape, np.float32)
            with np.errstate(over="ignore"), small_cast_buffers():
                np.divide(found.total, divisor, out=change, casting="same_kind", dtype=np.float64)
            merged[name] = change.reshape(shape)
        return merged, ()

    def _shares_by_tensor(self) -> dict[str, dict[str, Share]]:
        """Returns what the devices count in each tensor of the kept updates.

        Devices are compared with all of the round; without bounds by medians, with none.
        """
        if not self._kept:
            return {}
        compared = self._slices if self.rule.bounds.compares else self._kept
        groups = grouped({device: self._slices[device] for device in compared})
        kept = {name for tensors in self._kept.values() for name in tensors}
        return {
            name: found
            for holders, names in groups.items()
            for found in [self._shares(holders, names)]
            for name in names
            if name in kept
        }

    def _shares(self, holders: Sequence[str], names: Sequence[str]) -> dict[str, Share]:
        """Returns what each device counts in a group of tensors, and notes who was limited."""
        weighted = self.rule.name == "samples"
        samples = {device: self._sizes[device].samples for device in holders}
        norms = {device: self._sizes[device].norm(names) for device in holders}
        found = shares(samples, norms, self.rule.bounds, weighted=weighted)
        self.clipped |= {d for d, s in found.items() if s.factor * self._sizes[d].factor < 1}
        if weighted:
            self.bounded |= {d for d, share in found.items() if share.weight < samples[d]}
        return found

    def _add_to(self, found: _Sum, name: str, counted: Mapping[str, Share]) -> None:
        """Adds a tensor of all kept updates, in the order of arrival."""
        with small_cast_buffers():
            for device, tensors in self._kept.items():
                if name not in tensors:
                    continue
                unit = self._unit if self.rule.name == "samples" else 1
                weight = counted[device].counts / unit
                clip = self._sizes[device].factor
                accumulate(found.total, tensors[name], weight * clip, self._scratch)
                found.weight += weight


class _Keeping(Tally):
    """median, trimmed-mean, multi-krum: need all updates at once, so a round keeps a copy of each.

    That costs K times the size of an update: 1.3 GB for 200 devices that share 6.7 MB. Bounds by
    medians are not for them: an absurd update that is scaled down looks like an honest one.
    """

    def __init__(self, rule: MergeRule) -> None:
        super().__init__(rule)
        self._updates: dict[str, Tensors] = {}  # by device; every tensor flat

    def _take(self, device: str, flat: Tensors) -> None:
        factor = self._sizes[device].factor
        if factor < 1:
            self.clipped.add(device)
        self._updates[device] = scaled(flat, factor)

    def merged(self) -> tuple[Tensors, tuple[str, ...]]:
        merged: Tensors = {}
        held_back: list[str] = []
        groups = grouped({d: tuple(sorted(tensors)) for d, tensors in self._updates.items()})
        for holders, names in groups.items():
            if len(holders) < self.rule.fewest:
                held_back += names
                continue
            rows = {name: [self._updates[d][name] for d in holders] for name in names}
            column_rule = self._column_rule(rows)
            for name in names:
                flat = robust.by_blocks(column_rule, rows[name])
                merged[name] = flat.reshape(self._shapes[name])
        return dict(sorted(merged.items())), tuple(sorted(held_back))

    def _column_rule(
        self, rows: Mapping[str, list[robust.Vector]]
    ) -> Callable[[robust.Stacked], robust.Vector]:
        """Returns the rule for each block of a group; Krum compares the whole updates first."""
        liars = self.rule.byzantine
        if self.rule.name == "median":
            return robust.median
        if self.rule.name == "trimmed-mean":
            return partial(robust.trimmed_mean, liars=liars)
        squares = sum(robust.squared_distances(tensor_rows) for tensor_rows in rows.values())
        chosen = robust.krum_choice(np.asarray(squares), liars)
        return lambda stacked: robust.mean(stacked[chosen])
