"""What a device answers to one example; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firmware_sim.bundle.target import Target
from firmware_sim.tensor_spec import Array


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer to one example; what does not fit the kind of target is None.

    `label` is the most probable class, or one for each position. `score` is the reconstruction
    error of an autoencoder; `anomalous` is None until a threshold is known from held-out examples.
    """

    output: Array
    label: int | Array | None = None
    probabilities: Array | None = None
    score: float | None = None
    anomalous: bool | None = None


def prediction_of(
    target: Target, x: Array, output: Array, probabilities: Array, threshold: float | None
) -> Prediction:
    """Returns the prediction for one example `x`, from what the model answers to it."""
    if target.is_class:
        rows = probabilities.reshape(*target.shape, -1)
        best = rows.argmax(-1)
        label = best if target.shape else int(best)
        return Prediction(output, label=label, probabilities=rows)
    if target.kind != "input":
        return Prediction(output)
    score = _mean_square(output, x * np.float64(target.scale))
    return Prediction(
        output, score=score, anomalous=None if threshold is None else score > threshold
    )


def error_of(target: Target, predicted: Prediction, y: Array) -> tuple[float, float]:
    """Returns how wrong a prediction was, as people read it, and its loss.

    class    the part of labels that are wrong, and the mean of -log p(label); -1 does not count
    numbers  the mean absolute error, and the mean square
    input    the reconstruction error, twice
    """
    if predicted.score is not None:
        return predicted.score, predicted.score
    if predicted.probabilities is None:
        wrong = predicted.output.astype(np.float64).reshape(y.shape) - y
        return float(np.abs(wrong).mean()), float(np.square(wrong).mean())
    labels = y.reshape(-1)
    counts = labels >= 0
    rows = predicted.probabilities.reshape(len(labels), -1)[counts]
    if not len(rows):
        return math.nan, math.inf
    right = rows[np.arange(len(rows)), labels[counts]]
    wrong = rows.argmax(-1) != labels[counts]
    return float(wrong.mean()), float(-np.log(np.maximum(right, 1e-9)).mean())


def _mean_square(output: Array, wanted: Array) -> float:
    return float(np.square(output.astype(np.float64).reshape(wanted.shape) - wanted).mean())
