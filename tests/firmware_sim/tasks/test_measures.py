"""Measures added up batch by batch are those of scikit-learn over all examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from firmware_sim.bundle.target import Target
from firmware_sim.errors import TaskError
from firmware_sim.tasks.anomaly import scores_of, threshold_of
from firmware_sim.tasks.measures import MEASURES, quality, sums_for
from firmware_sim.tensor_spec import Array

BATCH = 8
RNG = np.random.default_rng(0)


def measured(target: Target, wanted: Array, answers: dict[str, Array]) -> dict[str, float]:
    """Adds batches whose answers have rows more than there are examples, as a filled one has."""
    sums = sums_for(target)
    for start in range(0, len(wanted), BATCH):
        rows = slice(start, start + BATCH)
        batch = {name: values[rows] for name, values in answers.items()}
        missing = BATCH - len(wanted[rows])
        filled = {n: np.concatenate([v, 1000 + v[:missing]]) for n, v in batch.items()}
        if target.is_class:
            right = (batch["predicted"] == wanted[rows]) & (wanted[rows] >= 0)
            loss = batch["loss"].sum()  # rows that fill up are labelled -1 and do not count
            filled |= {"loss": loss, "correct": right.sum()}
        sums.add(wanted[rows], filled)
    return sums.scores()


def test_classes() -> None:
    wanted, predicted = (RNG.integers(0, 4, 27).astype(np.int32) for _ in range(2))
    wanted[wanted == 2] = 0  # no example of class 2
    losses = RNG.random(27)
    found = measured(Target("class", (), 4), wanted, {"predicted": predicted, "loss": losses})
    assert found["loss"] == pytest.approx(losses.mean())
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(wanted, predicted))
    assert "recall_2" not in found
    held = [0, 1, 3]
    recalls = metrics.recall_score(wanted, predicted, labels=held, average=None)
    assert [found[f"recall_{c}"] for c in held] == pytest.approx(recalls)
    assert found["mean_recall"] == pytest.approx(recalls.mean())


def test_positions_that_are_masked_do_not_count() -> None:
    wanted, predicted = (RNG.integers(0, 3, (11, 5)).astype(np.int32) for _ in range(2))
    wanted[RNG.random((11, 5)) < 0.4] = -1
    counts = wanted >= 0
    losses = np.where(counts, RNG.random((11, 5)), 0.0)
    found = measured(
        Target("class_per_position", (5,), 3),
        wanted,
        {"predicted": predicted, "loss": losses.mean(1)},  # as `evaluate` answers, over positions
    )
    assert found["loss"] == pytest.approx(losses[counts].mean())
    assert found["accuracy"] == pytest.approx((wanted == predicted)[counts].mean())
    recalls = metrics.recall_score(wanted[counts], predicted[counts], average=None)
    assert [found[f"recall_{c}"] for c in range(3)] == pytest.approx(recalls)


def test_many_classes_have_their_mean_recall_alone() -> None:
    wanted = np.arange(40, dtype=np.int32)
    found = measured(Target("class", (), 40), wanted, {"predicted": wanted, "loss": wanted * 0.0})
    assert found == {"loss": 0.0, "accuracy": 1.0, "mean_recall": 1.0}


def numbers(shape: tuple[int, ...], offset: float) -> tuple[Array, Array, dict[str, Any]]:
    wanted = (offset + RNG.normal(size=(21, *shape))).astype(np.float32)
    answers = wanted + RNG.normal(0, 0.5, wanted.shape).astype(np.float32)
    error = (answers.astype(np.float64) - wanted).reshape(21, -1)
    each = {"absolute_error": np.abs(error).mean(1), "squared_error": (error**2).mean(1)}
    return wanted, answers, {"loss": each["squared_error"], **each}


@pytest.mark.parametrize("shape", [(1,), (3,), (4, 2)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_numbers(shape: tuple[int, ...], offset: float) -> None:
    wanted, answers, each = numbers(shape, offset)
    found = measured(Target("numbers", shape), wanted, each)
    flat = wanted.reshape(21, -1).astype(np.float64), answers.reshape(21, -1).astype(np.float64)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(*flat))
    assert found["rmse"] == pytest.approx(metrics.mean_squared_error(*flat) ** 0.5)
    explained = metrics.r2_score(*flat, multioutput="variance_weighted")
    assert found["r2"] == pytest.approx(explained, rel=1e-4)
    assert quality(found) == pytest.approx(found["r2"])


def test_what_never_varies_has_no_r2() -> None:
    wanted = np.full((5, 1), 3, np.float32)
    each = dict.fromkeys(("loss", "absolute_error", "squared_error"), np.ones(5))
    found = measured(Target("numbers", (1,)), wanted, each)
    assert found == {"loss": 1.0, "mae": 1.0, "rmse": 1.0}
    assert quality(found) is None


def test_reconstructions_and_the_threshold_of_anomalies() -> None:
    x = RNG.integers(0, 17, (21, 4)).astype(np.uint8)
    target = Target("input", (4,), scale=1 / 16)
    answers = (x / 16 + RNG.normal(0, 0.1, x.shape)).astype(np.float32)
    scores = scores_of(target, x, answers)
    assert scores == pytest.approx(((answers - x / 16) ** 2).mean(1))
    each = {"loss": scores, "absolute_error": scores, "squared_error": scores}
    found = measured(target, x, each)
    assert found["reconstruction_error"] == pytest.approx(scores.mean())
    assert found["r2"] == pytest.approx(1 - scores.mean() / (x / 16).var(0).mean())
    assert found["anomaly_threshold"] == pytest.approx(np.quantile(scores, 0.99))
    assert "rmse" not in found
    assert (scores > threshold_of(scores, 0.5)).sum() == 10


@pytest.mark.parametrize("quantile", [0.0, -0.1, 1.5, float("nan")])
def test_a_quantile_lies_between_0_and_1(quantile: float) -> None:
    with pytest.raises(TaskError, match=r"it must be above 0 and at most 1, as 0\.99 is\.$"):
        threshold_of(np.ones(3), quantile)


def test_versions_are_compared_by_gain_and_useless_ones_have_no_quality() -> None:
    assert MEASURES["class"].gain({"accuracy": 0.5}) == 0.5
    assert MEASURES["numbers"].gain({"rmse": 2.0}) == -2.0
    assert quality({"r2": -3.0}) == 0.0
    assert quality({"score": 17.0}) is None
