"""How much one member of a fleet can move a round: bounds of weights, and clipping of updates.

Devices are compared with each other group by group. A group is all tensors that the same K devices
hold, so that a branch which shares more is not taken for a larger update. With K ≥ 3:

    n'_k = min(n_k, N, M · median_j n_j)           bounded weight; N is provisioned
    c_k  = n'_k · ‖Δ_k‖                            contribution
    f_k  = min(1, C · median_j c_j / c_k)          clipping
    Δ    = Σ_k f_k n'_k Δ_k / Σ_k f_k n'_k         "samples"; for "mean" n'_k = 1

"sum" adds f_k Δ_k with c_k = ‖Δ_k‖. Robust rules are left alone: they find liars by their size too.
What is cut from an update is cut from the divisor too: an absurd update does not slow the others
down.

M and C are multiples of a median, which a minority of lying devices cannot move beyond what honest
ones send. The contribution is bounded, and not the norm, because a device that lies about both
would be M · C times as strong. Devices that changed nothing (‖Δ_k‖ = 0) have no part in the median
of c.

With K < 3 there is no majority to compare with, so n'_k = min(n_k, N) and f_k = 1: of two devices,
one with 5 % and one with 95 % of the data, both count as the paper says (α_k = n_k / Σ n_j).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.errors import MergeRefused

FEWEST = 3  # devices, of which one may lie without moving the median beyond the others
OFF = "off"


@dataclass(frozen=True)
class Bounds:
    """What one update may weigh, and how large it may be; None: no such bound."""

    max_samples: int | None = None  # N: the most data that a device of the fleet can have
    max_weight: float | None = 3.0  # M, × the median of the sample counts
    clip: float | None = 2.0  # C, × the median of the contributions
    clip_norm: float | None = None  # largest L2 norm over all tensors of one update

    def __post_init__(self) -> None:
        if self.max_samples is not None and self.max_samples < 1:
            raise MergeRefused(f"max_samples must be 1 or more, not {self.max_samples}.")
        for name, multiple in (("max_weight", self.max_weight), ("clip", self.clip)):
            # Below 1 × the median half of all honest devices would be bounded.
            if multiple is not None and not 1 <= multiple < math.inf:
                raise MergeRefused(
                    f"{name} is a multiple of the median: it must be a finite number of 1 or "
                    f"more, not {multiple}."
                )
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise MergeRefused(f"clip_norm must be a finite number above 0, not {self.clip_norm}.")

    @property
    def compares(self) -> bool:
        """Whether an update is bounded by those of other devices."""
        return self.max_weight is not None or self.clip is not None

    @property
    def described(self) -> str:
        """All of them but `clip_norm`, for the identity of a state; empty where there is none."""
        found = {
            "max samples": self.max_samples,
            "max weight": self.max_weight,
            "clip adaptive": self.clip,
        }
        return "".join(f", {name} {value}" for name, value in found.items() if value is not None)


UNBOUNDED = Bounds(max_weight=None, clip=None)


@dataclass(frozen=True)
class Size:
    """What an update claims to weigh, and how large it is once `clip_norm` is applied."""

    samples: int
    factor: float = 1.0  # min(1, clip_norm / ‖Δ‖)
    squares: Mapping[str, float] = field(default_factory=dict)  # ‖Δ‖² by tensor

    def norm(self, names: Iterable[str]) -> float:
        """Returns ‖Δ‖ over some tensors; 0 where no norms are compared."""
        return math.sqrt(math.fsum(self.squares.get(name, 0.0) for name in names))


@dataclass(frozen=True)
class Share:
    """What an update counts in a group of tensors."""

    weight: float  # n'_k, or 1 if the merge rule ignores samples
    factor: float  # f_k

    @property
    def counts(self) -> float:
        return self.weight * self.factor


def size_of(squares: Mapping[str, float], samples: int, bounds: Bounds) -> Size:
    """Returns the size of an update with these ‖Δ‖² by tensor, as far as the bounds need it."""
    if bounds.clip is None and bounds.clip_norm is None:
        return Size(samples)
    norm = math.sqrt(math.fsum(squares.values()))
    if bounds.clip_norm is None or norm <= bounds.clip_norm:
        return Size(samples, squares=squares)
    factor = bounds.clip_norm / norm
    return Size(samples, factor, {name: s * factor * factor for name, s in squares.items()})


def grouped(slices: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
    """Returns tensors by the devices that hold them, both in the order of their names.

    `slices` has the tensors of each device.
    """
    by_slice: dict[tuple[str, ...], list[str]] = {}
    for device, names in slices.items():
        by_slice.setdefault(tuple(names), []).append(device)
    within: dict[str, list[tuple[str, ...]]] = {}  # the slices that have a tensor
    for held in by_slice:
        for name in held:
            within.setdefault(name, []).append(held)
    by_slices: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name in sorted(within):
        by_slices.setdefault(tuple(within[name]), []).append(name)
    return {
        tuple(sorted(device for held in chosen for device in by_slice[held])): tensors
        for chosen, tensors in by_slices.items()
    }


def shares(
    samples: Mapping[str, int],
    norms: Mapping[str, float],
    bounds: Bounds,
    *,
    weighted: bool,
) -> dict[str, Share]:
    """Returns what each of the devices that hold a group counts in it.

    By device: n_k, and ‖Δ_k‖ over the group. `weighted`: the merge rule weighs by samples.
    """
    weights = bounded_weights(list(samples.values()), bounds) if weighted else [1] * len(samples)
    factors = clip_factors([norms[device] for device in samples], weights, bounds)
    return {d: Share(w, f) for d, w, f in zip(samples, weights, factors, strict=True)}


def bounded_weights(samples: Sequence[int], bounds: Bounds) -> list[float]:
    """n'_k = min(n_k, N, M · median_j n_j); what is within its bounds stays the integer it is."""
    most = math.inf if bounds.max_samples is None else bounds.max_samples
    if bounds.max_weight is not None and len(samples) >= FEWEST:
        known = [min(count, most) for count in samples]
        most = min(most, bounds.max_weight * statistics.median(known))
    return [min(count, most) for count in samples]


def clip_factors(norms: Sequence[float], weights: Sequence[float], bounds: Bounds) -> list[float]:
    """f_k = min(1, C · median_j c_j / c_k) with c_k = n'_k · ‖Δ_k‖."""
    contributions = [weight * norm for norm, weight in zip(norms, weights, strict=True)]
    known = [c for c in contributions if c > 0]
    if bounds.clip is None or len(known) < FEWEST:
        return [1.0] * len(contributions)
    most = bounds.clip * statistics.median(known)
    return [1.0 if c <= most else most / c for c in contributions]


def parse_max_weight(text: str) -> float | None:
    """Returns the multiple of a setting such as 3, or None for off."""
    if text == OFF:
        return None
    try:
        return float(text)
    except ValueError:
        raise MergeRefused(
            f"max_weight {text!r} is not understood: write a multiple of the median of 1 or "
            "more, as 3 is, or off."
        ) from None


def parse_clip(text: str) -> float | None:
    """Returns the multiple of a setting such as adaptive:2, or None for off."""
    if text == OFF:
        return None
    name, _, written = text.partition(":")
    try:
        multiple = float(written)
    except ValueError:
        multiple = math.nan
    if name != "adaptive" or math.isnan(multiple):
        raise MergeRefused(
            f"clip {text!r} is not understood: write adaptive:K with a multiple of the median of "
            "1 or more, as in adaptive:2, or off."
        )
    return multiple
