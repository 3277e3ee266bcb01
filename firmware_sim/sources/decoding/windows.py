"""Samples in, windows out: every `hop` samples, the last `length` of them.

    window n holds the samples n·hop … n·hop + length − 1

A missing value is NaN; a missing label too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from firmware_sim.tensor_spec import Array

Missing = Literal["skip", "hold"] | float
LabelOf = Literal["last", "majority", "mean", "each"]


@dataclass(frozen=True, eq=False)
class Window:
    """The samples of one window, and what its label is."""

    x: Array  # float64[length, channels]
    y: Array | None  # float64[targets], or [length, targets] for a label of each sample
    missing: int = 0  # values that are not there


class Windows:
    """A ring of the last samples of one sensor."""

    def __init__(
        self,
        length: int,
        hop: int,
        channels: int,
        *,
        targets: int = 1,
        missing: Missing = "skip",
        label_of: LabelOf = "last",
    ) -> None:
        self.length = length
        self.hop = hop
        self.channels = channels
        self._missing = missing
        self._label_of = label_of
        self._x = np.full((length, channels), np.nan)
        self._y = np.full((length, targets), np.nan)
        self._held = np.full(channels, np.nan)  # the last value of each channel
        self._next = 0  # place of the next sample in the ring
        self._until = length  # samples until the next window is complete

    def add(self, sample: Array, label: Array | float = np.nan) -> Window | None:
        """Takes one sample; returns the window that it completes."""
        self._x[self._next] = self._filled(sample)
        self._y[self._next] = label
        self._next = (self._next + 1) % len(self._x)
        self._until -= 1
        if self._until:
            return None
        self._until = self.hop
        x = np.roll(self._x, -self._next, axis=0)
        y = label_of(np.roll(self._y, -self._next, axis=0), self._label_of)
        return Window(x, y, int(np.isnan(x).sum()))

    def restart(self) -> None:
        """Forgets the samples so far: what comes next does not follow them."""
        self._until = self.length

    @property
    def begun(self) -> int:
        """The number of samples of the next window so far; -n if it begins in n samples."""
        return self.length - self._until

    def held(self, *, before: int) -> Array | None:
        """Returns the values that were held so many samples ago; None if none are held."""
        if self._missing != "hold":
            return None
        return self._held if not before else self._x[(self._next - 1 - before) % self.length]

    def resume(self, skip: int, held: Array | None) -> None:
        """The next window begins in `skip` samples; the last values before them were `held`."""
        self._until = self.length + skip
        if held is not None:
            self._held = self._x[self._next - 1] = held

    def _filled(self, sample: Array) -> Array:
        if self._missing == "skip":
            return sample
        if self._missing != "hold":
            return np.where(np.isnan(sample), self._missing, sample)
        self._held = np.where(np.isnan(sample), self._held, sample)
        return self._held


def label_of(labels: Array, rule: LabelOf) -> Array | None:
    """Returns the label of a window whose samples have these; None if it is not known.

    The majority is of the samples that have a label; of equally frequent ones, the latest.
    """
    known = ~np.isnan(labels).any(axis=1)
    found: Array
    match rule:
        case "last":
            return labels[-1] if known[-1] else None
        case "majority":
            if not known.any():
                return None
            values, last, counts = np.unique(
                labels[known][::-1], axis=0, return_index=True, return_counts=True
            )
            best = max(range(len(values)), key=lambda i: (counts[i], -last[i]))
            found = values[best]
            return found
        case "mean":
            found = labels.mean(axis=0)
            return found if known.all() else None
        case "each":
            return labels if known.all() else None
