"""Anomalies, found by an autoencoder; pure.

The score of an example is its reconstruction error, the mean of (answer - x · scale)² over its
numbers. It is anomalous if its score is above the threshold: a quantile of the scores of examples
that were held out, so that of usual examples only a part of 1 - quantile is called anomalous.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from firmware_sim.bundle.target import Target
from firmware_sim.errors import TaskError
from firmware_sim.tensor_spec import Array

QUANTILE = 0.99
THRESHOLD = "anomaly_threshold"  # its name among the scores, and in the state of a task


def scores_of(target: Target, x: Array, answers: Array) -> Array:
    """Returns the score of each example, from what `infer` answers to it."""
    error = answers.astype(np.float64) - x * np.float64(target.scale)
    found: Array = np.mean(error.reshape(len(x), -1) ** 2, axis=1)
    return found


def threshold_of(scores: Array, quantile: float = QUANTILE) -> float:
    """Returns the threshold, from the scores of examples that were held out."""
    return float(np.quantile(scores, check_quantile(quantile)))


def check_quantile(quantile: float) -> float:
    """Returns it; raises `TaskError` unless it lies between 0 and 1."""
    if not 0 < quantile <= 1:
        raise TaskError(
            f"the anomaly quantile is {quantile:g}; it must be above 0 and at most 1, as 0.99 is."
        )
    return quantile


def with_threshold(state: dict[str, Array], threshold: float | None) -> dict[str, Array]:
    """Returns the state of a task with the threshold in it, if there is one."""
    return state if threshold is None else {**state, THRESHOLD: np.array(threshold)}


def without_threshold(state: Mapping[str, Array]) -> tuple[dict[str, Array], float | None]:
    """Returns the rest of the state of a task, and the threshold."""
    rest = dict(state)
    found = rest.pop(THRESHOLD, None)
    if found is not None and (found.ndim or found.dtype != np.float64):
        raise TaskError(f"{THRESHOLD} in the state of a task is a single float64.")
    return rest, None if found is None else float(found)
