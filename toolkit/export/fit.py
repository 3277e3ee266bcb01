"""Finds the widest branch that fits a profile, by measuring and not by guessing.

Wider is assumed to need more: more operations, more memory, longer steps. That only decides which
widths are tried. The result itself was exported and measured, and so was the next wider one, which
does not fit (unless the next one is out of range, or fails a limit that can be counted).
"""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from firmware_sim.bundle.manifest import Measured
from firmware_sim.training.limits import MIB, stored_bytes
from profiles import Profile
from toolkit.branch.branch import Branch
from toolkit.branch.counting import count
from toolkit.errors import ExportError, ModelError
from toolkit.export.bundle import export
from toolkit.export.memory_estimate import RESERVE_MIB, largest_micro_batch
from toolkit.export.trial import Progress, try_micro_batch
from toolkit.tuning.files import shipped

_NO_MEMORY_CAP_MIB, _NO_STORAGE_CAP_MIB = 2**20, 2**24  # the largest values that a profile may have
_MOST_GROWTH, _LEAST_GROWTH = 8.0, 1.25  # from one try to the next while all of them fit

Build = Callable[[int], Branch]


@dataclass(frozen=True)
class FitLimits:
    """What a branch may need; None is no limit."""

    memory_bytes: int
    storage_bytes: int
    operations: int | None = None  # of one inference on one example
    step_seconds: float | None = None


@dataclass(frozen=True)
class TriedWidth:
    """A width and what it needs in the largest micro-batches that fit, else in those of one sample.

    None is where counting was enough to refuse.
    """

    width: int
    parameters: int
    operations: int
    state_bytes: int  # weights and optimiser slots, which are always in memory
    peak_bytes: int | None = None
    stored_bytes: int | None = None  # bundle and checkpoints on the device's disk
    step_seconds: float | None = None  # of a whole batch
    micro_batch: int | None = None  # samples

    def excess(self, limits: FitLimits) -> tuple[str, ...]:
        """Every limit that is passed, and by how much; empty if it fits."""
        found = []
        memory = self.peak_bytes or self.state_bytes
        if memory > limits.memory_bytes:
            what = "in training" if self.peak_bytes else "for weights and optimiser alone"
            found.append(f"{(memory - limits.memory_bytes) / MIB:,.1f} MiB too much {what}")
        if (self.stored_bytes or 0) > limits.storage_bytes:
            more = (self.stored_bytes or 0) - limits.storage_bytes
            found.append(f"{more / MIB:,.1f} MiB too much on disk")
        if limits.operations is not None and self.operations > limits.operations:
            found.append(f"{self.operations - limits.operations:,} operations too many")
        if limits.step_seconds is not None and (self.step_seconds or 0) > limits.step_seconds:
            longer = (self.step_seconds or 0) - limits.step_seconds
            found.append(f"{longer * 1e3:.2f} ms too long a step")
        return tuple(found)

    def fits(self, limits: FitLimits) -> bool:
        return not self.excess(limits)

    def load(self, limits: FitLimits) -> float:
        """The part of the tightest limit that is used: it fits up to 1."""
        used = [(self.peak_bytes or self.state_bytes) / limits.memory_bytes]
        used.append((self.stored_bytes or 0) / limits.storage_bytes)
        if limits.operations is not None:
            used.append(self.operations / limits.operations)
        if limits.step_seconds is not None:
            used.append((self.step_seconds or 0) / limits.step_seconds)
        return max(used)


@dataclass(frozen=True)
class Fitting:
    """The widest branch that fits, and everything that was tried, by width."""

    profile: Profile
    limits: FitLimits
    best: TriedWidth
    tried: tuple[TriedWidth, ...]

    def command(self, profile: str, function: str) -> str:
        """What exports the widest branch, with profile and function as the user gave them."""
        model = f"{function}:{self.best.width}"
        return shlex.join(["toolkit", "export", "--profile", profile, "--model", model])

    def report(self, profile: str, function: str) -> dict[str, Any]:
        rows = [
            {**asdict(t), "fits": t.fits(self.limits), "excess": list(t.excess(self.limits))}
            for t in self.tried
        ]
        return {
            "profile": self.profile.name,
            "limits": asdict(self.limits),
            "width": self.best.width,
            "tried": rows,
            "export": self.command(profile, function),
        }

    def table(self) -> Table:
        table = Table(
            *("width", "parameters", "operations", "peak MiB", "disk MiB", "step ms"),
            *("micro-batch", "fits?"),
        )
        for tried in self.tried:
            peak, stored, step = tried.peak_bytes, tried.stored_bytes, tried.step_seconds
            table.add_row(
                str(tried.width),
                f"{tried.parameters:,}",
                f"{tried.operations:,}",
                "" if peak is None else f"{peak / MIB:.1f}",
                "" if stored is None else f"{stored / MIB:.1f}",
                "" if step is None else f"{step * 1e3:.2f}",
                "" if tried.micro_batch is None else str(tried.micro_batch),
                ", ".join(tried.excess(self.limits)) or ("widest" if tried == self.best else "yes"),
            )
        return table


def fit(
    build: Build,
    profile: Profile,
    *,
    min_width: int = 1,
    max_width: int = 512,
    max_operations: int | None = None,
    max_step_seconds: float | None = None,
    progress: Progress = lambda text: None,
) -> Fitting:
    """Tries widths until one fits and the next does not; each try is a real export."""
    if min_width > max_width:
        raise ModelError(f"the least width {min_width} is above the greatest, {max_width}.")
    limits = FitLimits(
        memory_bytes=(profile.memory_cap_mib - RESERVE_MIB) * MIB,  # as an export wants it
        storage_bytes=profile.storage_cap_mib * MIB,
        operations=max_operations,
        step_seconds=max_step_seconds,
    )
    tries = _Tries(build, profile, limits, progress)
    low = tries.measured(min_width)
    if excess := low.excess(limits):
        raise ExportError(
            f"even width {min_width} does not fit profile {profile.name}: {' and '.join(excess)}."
        )
    top = _widest_countable(tries, min_width, max_width)
    best = widest(tries.measured, limits, low, top)
    return Fitting(profile, limits, best, tries.all())


def widest(
    measure: Callable[[int], TriedWidth], limits: FitLimits, low: TriedWidth, top: int
) -> TriedWidth:
    """The widest up to `top` that fits, from `low`, which does; few are measured.

    Grows until one does not fit, then narrows the gap between the two.
    """
    high = before = None
    while high is None and low.width < top:
        reach = _reach(before, low, limits) if before else math.inf
        most, least = _MOST_GROWTH * low.width, math.ceil(_LEAST_GROWTH * low.width)
        tried = measure(min(top, max(least, math.floor(min(reach, most)))))
        if not tried.fits(limits):
            high = tried
        else:
            before, low = low, tried

    same_side = 0  # how often in a row the same end moved: after two, halving is quicker
    while high is not None and high.width - low.width > 1:
        middle = (low.width + high.width) // 2
        guess = middle if abs(same_side) >= 2 else math.floor(_reach(low, high, limits))
        tried = measure(min(max(guess, low.width + 1), high.width - 1))
        if not tried.fits(limits):
            high, same_side = tried, min(same_side, 0) - 1
        else:
            low, same_side = tried, max(same_side, 0) + 1
    return low


def _reach(narrow: TriedWidth, wide: TriedWidth, limits: FitLimits) -> float:
    """Where a load of p + q · width² through both points comes to 1.

    Weights between two layers of the same width grow so; activations grow more slowly.
    """
    rise = wide.load(limits) - narrow.load(limits)
    if rise <= 0:
        return math.inf
    squares = narrow.width**2, wide.width**2
    reached = squares[0] + (1 - narrow.load(limits)) * (squares[1] - squares[0]) / rise
    return math.sqrt(max(reached, 0.0))


def _widest_countable(tries: _Tries, low: int, most: int) -> int:
    """The widest that counting alone does not refuse: no conversion is needed to know that.

    It begins with the narrow ones, since to build the widest may take more memory than there is.
    """
    high = low
    while tries.counted(high).fits(tries.limits):
        low, high = high, min(2 * high, most)
        if low == most:
            return most
    while high - low > 1:
        middle = (low + high) // 2
        if tries.counted(middle).fits(tries.limits):
            low = middle
        else:
            high = middle
    return low


class _Tries:
    """What is known about each width so far."""

    def __init__(
        self, build: Build, profile: Profile, limits: FitLimits, progress: Progress
    ) -> None:
        self.limits = limits
        self._build = build
        # The caps are compared here, so that what does not fit is measured as well.
        self._profile = replace(
            profile, memory_cap_mib=_NO_MEMORY_CAP_MIB, storage_cap_mib=_NO_STORAGE_CAP_MIB
        )
        self._progress = progress
        self._found: dict[int, TriedWidth] = {}

    def all(self) -> tuple[TriedWidth, ...]:
        return tuple(self._found[width] for width in sorted(self._found))

    def counted(self, width: int) -> TriedWidth:
        """Parameters and operations; kept only if they are too many, which needs no measuring."""
        self._progress(f"counting width {width}")
        tried = self._count(width, self._build(width))
        if not tried.fits(self.limits):
            self._found[width] = tried
        return tried

    def measured(self, width: int) -> TriedWidth:
        """Counted, and if that does not refuse it already, exported and run in fresh processes."""
        done = sum(tried.peak_bytes is not None for tried in self._found.values())
        self._progress(f"try {done + 1}: width {width}")
        branch = self._build(width)
        tried = self._count(width, branch)
        if tried.fits(self.limits):
            try:
                tried = self._export(tried, branch)
            except ExportError as error:
                raise ExportError(f"width {width} cannot be exported: {error}") from error
        self._found[width] = tried
        return tried

    def _export(self, counted: TriedWidth, branch: Branch) -> TriedWidth:
        """What was counted, with what the largest micro-batch that fits was measured to take."""
        found: dict[int, TriedWidth] = {}
        with tempfile.TemporaryDirectory() as folder:
            bundle = export(branch, self._profile, Path(folder) / "bundle")
            beside = stored_bytes(bundle.manifest) - bundle.model.stat().st_size

            def fits(micro_batch: int, measured: Measured) -> bool:
                found[micro_batch] = replace(
                    counted,
                    peak_bytes=measured.peak_bytes,
                    stored_bytes=beside + bundle.model.stat().st_size,
                    step_seconds=measured.step_seconds,
                    micro_batch=micro_batch,
                )
                return measured.peak_bytes <= self.limits.memory_bytes

            def attempt(micro_batch: int) -> bool:
                tuning = shipped(self._profile.runtime)
                trial = try_micro_batch(branch, self._profile, bundle.model, micro_batch, tuning)
                return fits(micro_batch, trial.measured)

            batch = self._profile.batch_size
            if fits(batch, bundle.measured):
                return found[batch]
            return found[largest_micro_batch(batch, attempt) or min(found)]

    def _count(self, width: int, branch: Branch) -> TriedWidth:
        counts = count(branch)
        copies = 1 + len(branch.learning.optimizer.slots)
        state_bytes = 4 * counts.parameters * copies  # float32
        return TriedWidth(width, counts.parameters, counts.operations, state_bytes)
