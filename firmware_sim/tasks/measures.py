"""The measures of a set of examples, added up batch by batch from what `evaluate` answers; pure.

classes   loss, accuracy and the recall of each class, over all that counts
numbers   loss, MAE, RMSE and R² = 1 - Σ(o - t)² / Σ(t - mean t)², over all outputs
input     loss, reconstruction error (the mean square), R², and the threshold of anomalies
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from firmware_sim.bundle.target import Kind, Target
from firmware_sim.tasks.anomaly import QUANTILE, THRESHOLD, threshold_of
from firmware_sim.tensor_spec import Array

Scores = dict[str, float]
MOST_RECALLS = 32  # with more classes, only their mean


@dataclass(frozen=True)
class Measure:
    """The measure by which two versions of a branch are compared."""

    name: str
    lower_is_better: bool = False

    def gain(self, scores: Mapping[str, float]) -> float:
        """Returns the measure, with its sign changed if lower is better."""
        return -scores[self.name] if self.lower_is_better else scores[self.name]


_ACCURACY = Measure("accuracy")
MEASURES: Mapping[Kind, Measure] = {
    "class": _ACCURACY,
    "class_per_position": _ACCURACY,
    "numbers": Measure("rmse", lower_is_better=True),
    "input": Measure("reconstruction_error", lower_is_better=True),
}


def quality(scores: Mapping[str, float]) -> float | None:
    """Returns from 0 (useless) to 1 (perfect) how good a model is, if it was measured.

    It is the accuracy, or R²: the part of the variance that the answers explain.
    """
    if "accuracy" in scores:
        return scores["accuracy"]
    return max(0.0, scores["r2"]) if "r2" in scores else None


class Sums(Protocol):
    """What is known of the batches so far."""

    def add(self, wanted: Array, answer: Mapping[str, Array]) -> None:
        """Adds a batch; rows of the answer after those of `wanted` filled it up."""

    def scores(self) -> Scores:
        """Returns the measures of all that was added."""


def sums_for(target: Target, quantile: float = QUANTILE) -> Sums:
    return _Classes(target.positions) if target.is_class else _Numbers(target, quantile)


class _Classes:
    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._counted = 0
        self._loss = self._correct = 0.0
        self._held: Array = np.zeros(0, np.int64)  # answers of each class, and the right ones
        self._found: Array = np.zeros(0, np.int64)

    def add(self, wanted: Array, answer: Mapping[str, Array]) -> None:
        counts = wanted >= 0
        labels = wanted[counts]
        self._counted += len(labels)
        self._loss += float(answer["loss"]) * self._positions  # a sum of means over positions
        self._correct += float(answer["correct"])
        if "predicted" not in answer or not len(labels):  # bundles of earlier versions
            return
        right = labels[answer["predicted"][: len(wanted)][counts] == labels]
        size = max(len(self._held), int(labels.max()) + 1)
        self._held = _grown(self._held, size) + np.bincount(labels, minlength=size)
        self._found = _grown(self._found, size) + np.bincount(right, minlength=size)

    def scores(self) -> Scores:
        counted = max(1, self._counted)
        found = {"loss": self._loss / counted, "accuracy": self._correct / counted}
        known = np.flatnonzero(self._held)
        recalls = {int(c): float(self._found[c] / self._held[c]) for c in known}
        if recalls:
            found["mean_recall"] = sum(recalls.values()) / len(recalls)
        if len(recalls) <= MOST_RECALLS:
            found |= {f"recall_{number}": recall for number, recall in recalls.items()}
        return found


class _Numbers:
    def __init__(self, target: Target, quantile: float) -> None:
        self._target = target
        self._quantile = quantile
        self._count = 0
        self._loss = self._absolute = 0.0
        self._squared: list[Array] = []  # of each example
        self._first: Array | None = None  # taken off, so that squares of large numbers stay exact
        self._sum: Array = np.zeros(target.shape, np.float64)
        self._square: Array = np.zeros(target.shape, np.float64)

    def add(self, wanted: Array, answer: Mapping[str, Array]) -> None:
        rows = len(wanted)
        self._count += rows
        self._loss += float(answer["loss"][:rows].sum(dtype=np.float64))
        self._absolute += float(answer["absolute_error"][:rows].sum(dtype=np.float64))
        self._squared.append(answer["squared_error"][:rows].copy())
        numbers = wanted.astype(np.float64) * self._target.scale
        if self._first is None:
            self._first = numbers[0]
        self._sum += (numbers - self._first).sum(0)
        self._square += ((numbers - self._first) ** 2).sum(0)

    def scores(self) -> Scores:
        squared = np.concatenate(self._squared)
        mean = float(squared.mean(dtype=np.float64))
        found = {"loss": self._loss / self._count}
        if self._target.kind == "input":
            found["reconstruction_error"] = mean
            found[THRESHOLD] = threshold_of(squared, self._quantile)
        else:
            found |= {"mae": self._absolute / self._count, "rmse": math.sqrt(mean)}
        variance = float(np.mean(self._square / self._count - (self._sum / self._count) ** 2))
        if variance > 0:  # otherwise there is nothing to explain
            found["r2"] = 1 - mean / variance
        return found


def _grown(counts: Array, size: int) -> Array:
    return np.pad(counts, (0, size - len(counts)))
