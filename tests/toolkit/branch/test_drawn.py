"""What a model brings trained is told from what was drawn."""

import json
from pathlib import Path

import keras
import numpy as np
from keras import layers

from toolkit.branch.branch import Branch
from toolkit.branch.drawn import trained_names
from toolkit.export.onnx.slice import build_slice

LOADED = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def branch() -> Branch:
    """A stem whose kernel comes from elsewhere; everything else is new."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, name="stem"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(2, name="head"),
        ]
    )
    model.get_layer("stem").kernel.assign(LOADED)
    return Branch("mixed", model, ("stem", "norm", "head"))


def test_what_stays_the_same_was_loaded() -> None:
    made = branch()
    assert trained_names(made, branch) == {"stem/kernel"}
    assert trained_names(made) == {"stem/kernel", "head/kernel"}  # none was made to compare with


def test_a_saved_model_brings_everything(tmp_path: Path) -> None:
    model = branch().model
    for variable in model.variables:
        variable.assign(np.random.default_rng(1).uniform(0.1, 0.9, variable.shape))
    model.save(tmp_path / "model.keras")

    def load() -> Branch:
        return Branch("saved", keras.models.load_model(tmp_path / "model.keras"), ("stem", "head"))

    found = trained_names(load(), load)
    assert found == load().weights().keys()
    stated = {entry.key: entry.value for entry in build_slice(load(), found).metadata_props}
    assert json.loads(stated["trained"]) == list(load().shared_names)
