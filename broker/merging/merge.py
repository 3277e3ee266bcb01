"""Merge arithmetic: every tensor is merged across the devices that hold it.

    sum            Δ = Σ_k Δ_k                               algorithm 2 as printed
    mean           Δ = (1/K) Σ_k Δ_k                         simple averaging
    samples        Δ = Σ_k α_k Δ_k,  α_k = n_k / Σ_j n_j     the gradient over all data
    median         the middle value of each coordinate       K ≥ 3
    trimmed-mean   without the f extremes on either side     K ≥ 2f + 1, f ≥ 1
    multi-krum     mean of the K - f most central updates    K ≥ 2f + 3, f ≥ 1

K, Σ_j and f count the devices that hold the tensor. The last three are robust: they tolerate up to
f Byzantine devices (the median: fewer than half), and ignore sample counts, because a Byzantine
device can send a wrong count too. Updates were checked before (finite values, known names and
shapes).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from broker.errors import MergeRefused
from broker.merging import robust
from broker.protocol.slice import Tensors

MERGES = ("sum", "mean", "samples", "median", "trimmed-mean", "multi-krum")
_STREAMING = ("sum", "mean", "samples")
_NEED_BYZANTINE = ("trimmed-mean", "multi-krum")

# numpy converts float32 to float64 through a buffer. Its default of 8,192 values does not fit the
# first-level cache of a core; this one does, and halves the time of an addition.
_CAST_BUFFER = 1024  # values
_CHUNK = 2**17  # values: 1 MiB of float64, which stays in the second-level cache


@dataclass(frozen=True)
class MergeRule:
    """How updates become one change of θ_shared."""

    name: str
    byzantine: int = 0  # f: the number of devices that may lie; for trimmed-mean and multi-krum
    clip_norm: float | None = None  # largest L2 norm over all tensors of one update

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
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise MergeRefused(f"clip_norm must be a finite number above 0, not {self.clip_norm}.")

    @property
    def is_robust(self) -> bool:
        """Whether the rule compares devices, and so tolerates some that lie."""
        return self.name not in _STREAMING

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
        self._devices: set[str] = set()
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, device: str, tensors: Tensors, samples: int) -> None:
        """Counts one device's update, or raises ValueError and counts nothing of it.

        The arrays are neither kept nor changed.
        """
        if device in self._devices:
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
        self._devices.add(device)
        self._shapes.update((name, tensor.shape) for name, tensor in tensors.items())
        self._take(device, tensors, samples)

    @abstractmethod
    def _take(self, device: str, tensors: Tensors, samples: int) -> None: ...

    @abstractmethod
    def merged(self) -> tuple[Tensors, tuple[str, ...]]:
        """Returns Δ by tensor, and the tensors that fewer than `rule.fewest` devices hold.

        A sum too large for float32 becomes infinite; the coordinator's optimiser refuses that.
        """


def tally(rule: MergeRule) -> Tally:
    """Returns an empty tally for one round."""
    return _Keeping(rule) if rule.is_robust else _Streaming(rule)


class _Streaming(Tally):
    """sum, mean, samples: one float64 accumulator per tensor, whatever the number of devices.

    Float64 makes the result independent of the order of arrival to about 1e-15 of Σ|Δ_k|.
    """

    def __init__(self, rule: MergeRule) -> None:
        super().__init__(rule)
        self._totals: dict[str, npt.NDArray[np.float64]] = {}
        self._weights: dict[str, float] = {}
        self._unit = 0  # samples of the first device: equal counts then need no multiplication
        self._scratch = np.empty(_CHUNK)

    def _take(self, device: str, tensors: Tensors, samples: int) -> None:
        self._unit = self._unit or samples
        weight = samples / self._unit if self.rule.name == "samples" else 1.0
        factor = _clip_factor(tensors, self.rule.clip_norm)
        with _small_cast_buffers():
            for name, tensor in tensors.items():
                if name not in self._totals:
                    self._totals[name] = np.zeros(tensor.size)
                    self._weights[name] = 0.0
                _accumulate(self._totals[name], tensor.reshape(-1), weight * factor, self._scratch)
                self._weights[name] += weight

    def merged(self) -> tuple[Tensors, tuple[str, ...]]:
        merged: Tensors = {}
        with np.errstate(over="ignore"), _small_cast_buffers():
            for name, total in sorted(self._totals.items()):
                divisor = 1.0 if self.rule.name == "sum" else self._weights[name]
                change = np.empty(total.shape, np.float32)
                np.divide(total, divisor, out=change, casting="same_kind", dtype=np.float64)
                merged[name] = change.reshape(self._shapes[name])
        return merged, ()


class _Keeping(Tally):
    """median, trimmed-mean, multi-krum: need all updates at once, so a round keeps a copy of each.

    That costs K times the size of an update: 1.3 GB for 200 devices that share 6.7 MB.
    """

    def __init__(self, rule: MergeRule) -> None:
        super().__init__(rule)
        self._updates: dict[str, Tensors] = {}  # by device; every tensor flat

    def _take(self, device: str, tensors: Tensors, samples: int) -> None:
        tensors, fresh = clipped(tensors, self.rule.clip_norm)
        flat = {name: tensor.reshape(-1) for name, tensor in tensors.items()}
        self._updates[device] = flat if fresh else {n: t.copy() for n, t in flat.items()}

    def merged(self) -> tuple[Tensors, tuple[str, ...]]:
        merged: Tensors = {}
        held_back: list[str] = []
        for holders, names in self._groups().items():
            if len(holders) < self.rule.fewest:
                held_back += names
                continue
            rows = {name: [self._updates[d][name] for d in holders] for name in names}
            column_rule = self._column_rule(rows)
            for name in names:
                flat = robust.by_blocks(column_rule, rows[name])
                merged[name] = flat.reshape(self._shapes[name])
        return dict(sorted(merged.items())), tuple(sorted(held_back))

    def _groups(self) -> dict[tuple[str, ...], list[str]]:
        """Returns tensors by the devices that hold them, all in the order of their names."""
        groups: dict[tuple[str, ...], list[str]] = {}
        devices = sorted(self._updates)
        for name in sorted(self._shapes):
            holders = tuple(device for device in devices if name in self._updates[device])
            groups.setdefault(holders, []).append(name)
        return groups

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


def scaled(tensors: Tensors, weight: float | Mapping[str, float]) -> Tensors:
    """Returns weight · Δ as new arrays, with one weight for all tensors or one for each."""
    result: Tensors = {}
    with _small_cast_buffers(), np.errstate(over="ignore"):
        for name, tensor in tensors.items():
            factor = weight[name] if isinstance(weight, Mapping) else weight
            # Multiplied in float64: a tiny factor would lose its digits as a float32.
            result[name] = np.multiply(
                tensor,
                factor,
                out=np.empty(tensor.shape, np.float32),
                dtype=np.float64,
                casting="same_kind",
            )
    return result


def clipped(tensors: Tensors, clip_norm: float | None) -> tuple[Tensors, bool]:
    """Returns Δ · min(1, clip_norm / ‖Δ‖), and whether it differs; the same object if not."""
    factor = _clip_factor(tensors, clip_norm)
    return (tensors, False) if factor == 1.0 else (scaled(tensors, factor), True)


def l2_norm(tensors: Tensors) -> float:
    """Returns ‖Δ‖₂ over all tensors together, accumulated in float64."""
    scratch = np.empty(_CHUNK)
    squares = 0.0
    for tensor in tensors.values():
        flat = tensor.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            wide = scratch[: part.size]
            np.copyto(wide, part)
            squares += float(np.dot(wide, wide))
    return math.sqrt(squares)


def _clip_factor(tensors: Tensors, clip_norm: float | None) -> float:
    if clip_norm is None:
        return 1.0
    norm = l2_norm(tensors)
    return clip_norm / norm if norm > clip_norm else 1.0


def _accumulate(
    total: npt.NDArray[np.float64],
    flat: npt.NDArray[np.float32],
    weight: float,
    scratch: npt.NDArray[np.float64],
) -> None:
    """total += weight · flat, with the product in float64 too."""
    if weight == 1.0:
        np.add(total, flat, out=total)
        return
    for start in range(0, flat.size, scratch.size):
        part = slice(start, start + scratch.size)
        product = scratch[: flat[part].size]
        np.multiply(flat[part], weight, out=product, dtype=np.float64)
        np.add(total[part], product, out=total[part])


@contextmanager
def _small_cast_buffers() -> Iterator[None]:
    """Sets the size of numpy's conversion buffer in this thread, and restores it."""
    before = np.setbufsize(_CAST_BUFFER)
    try:
        yield
    finally:
        np.setbufsize(before)
