"""Calibration examples say how devices normalise theirs, if the user wants that."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from firmware_sim.tasks.labelled import Examples, normalised
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.errors import ModelError
from toolkit.export.calibration import calibration_for


def branch(dtype: str) -> Branch:
    model = keras.Sequential([keras.Input((5, 2)), keras.layers.Flatten(), keras.layers.Dense(2)])
    return Branch("own", model, (model.layers[-1].name,), Supervised(), input_dtype=dtype)  # type: ignore[arg-type]


def test_ranges_are_those_of_normalised_examples(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal((10, -3), (4, 0.1), (200, 5, 2)).astype(np.float32)
    np.savez(tmp_path / "windows.npz", x=x)
    plain = calibration_for(branch("float32"), None, tmp_path / "windows.npz")
    assert plain.normalisation is None
    np.testing.assert_array_equal(plain.images, x)
    found = calibration_for(branch("float32"), None, tmp_path / "windows.npz", normalise=True)
    assert found.normalisation is not None
    np.testing.assert_allclose(found.normalisation.mean, x.mean((0, 1)), rtol=1e-4)
    np.testing.assert_allclose(found.normalisation.deviation, x.std((0, 1)), rtol=1e-4)
    np.testing.assert_allclose(found.images.std((0, 1)), 1, rtol=1e-4)

    y = np.zeros(200, np.int32)
    examples = normalised(Examples(x, y, x[:10], y[:10]), found.normalisation)
    np.testing.assert_array_equal(examples.x_train, found.images)
    np.testing.assert_array_equal(examples.x_test, found.images[:10])


def test_what_cannot_be_normalised(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--normalise needs --calibration"):
        calibration_for(branch("float32"), None, None, normalise=True)
    np.savez(tmp_path / "pixels.npz", x=np.zeros((1, 5, 2), np.uint8))
    with pytest.raises(ModelError, match="the branch takes uint8: only numbers with fractions"):
        calibration_for(branch("uint8"), None, tmp_path / "pixels.npz", normalise=True)
