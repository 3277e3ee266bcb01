"""`predict.tflite` answers as what the branch learns to answer."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from firmware_sim.predicting.predictor import Predictor
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.export.predict import convert_prediction
from toolkit.training.module import TrainingModule


@pytest.mark.parametrize("closing", [None, "sigmoid"])
def test_a_binary_answer_is_a_probability(closing: str | None, tmp_path: Path) -> None:
    """With a closing sigmoid and without one, as training and evaluation take it."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, activation=closing, name="only")])
    branch = Branch("binary", model, ("only",), Supervised("binary_cross_entropy"))
    assert branch.target is not None
    file = tmp_path / "predict.tflite"
    file.write_bytes(convert_prediction(TrainingModule(branch, batch=2, runtime="any")))
    predictor = Predictor(file, branch.target, runtime="ai-edge-litert")
    predictor.renew(branch.weights())
    x = np.array([2.0, -1.0, 3.0], np.float32)
    logits = x @ branch.weights()["only/kernel"] + branch.weights()["only/bias"]
    np.testing.assert_allclose(predictor.predict(x).output, 1 / (1 + np.exp(-logits)), rtol=1e-5)
