"""What a device answers, for each kind of target."""

import math

import numpy as np
import pytest

from firmware_sim.bundle.target import Target
from firmware_sim.predicting.prediction import error_of, prediction_of

X = np.array([2.0, 4.0], np.float32)


def test_a_class() -> None:
    target = Target("class", classes=3)
    probabilities = np.array([0.2, 0.5, 0.3], np.float32)
    found = prediction_of(target, X, np.array([1.0, 5.0, 2.0]), probabilities, None)
    assert (found.label, found.score, found.anomalous) == (1, None, None)
    assert (
        found.probabilities is not None and found.probabilities.tolist() == probabilities.tolist()
    )
    assert error_of(target, found, np.array(1, np.int32)) == (0.0, pytest.approx(-math.log(0.5)))
    assert error_of(target, found, np.array(2, np.int32)) == (1.0, pytest.approx(-math.log(0.3)))


def test_a_class_for_each_position() -> None:
    target = Target("class_per_position", shape=(2,), classes=2)
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6]], np.float32)
    found = prediction_of(target, X, probabilities, probabilities, None)
    assert np.array_equal(found.label, [0, 1])  # type: ignore[arg-type]
    wrong, loss = error_of(target, found, np.array([1, -1], np.int32))  # -1 does not count
    assert (wrong, loss) == (1.0, pytest.approx(-math.log(0.1)))
    assert error_of(target, found, np.array([0, 0], np.int32))[0] == 0.5
    assert math.isnan(error_of(target, found, np.array([-1, -1], np.int32))[0])


def test_numbers() -> None:
    target = Target("numbers", shape=(2,))
    output = np.array([1.0, 2.0], np.float32)
    found = prediction_of(target, X, output, output, 0.5)
    assert (found.label, found.probabilities, found.score) == (None, None, None)
    assert error_of(target, found, np.array([1.0, 5.0], np.float32)) == (1.5, 4.5)


def test_an_anomaly() -> None:
    target = Target("input", shape=(2,), scale=0.5)
    output = np.array([1.0, 4.0], np.float32)  # of [1, 2]: the error is 0 and 2
    found = prediction_of(target, X, output, output, 1.9)
    assert (found.score, found.anomalous) == (2.0, True)
    assert prediction_of(target, X, output, output, 2.0).anomalous is False
    assert prediction_of(target, X, output, output, None).anomalous is None
    assert error_of(target, found, X) == (2.0, 2.0)
