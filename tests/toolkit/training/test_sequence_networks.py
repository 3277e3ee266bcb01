"""Recurrent and attention networks learn in a real device, in both runtimes.

The task is to recall: of four random bits one is marked, and the class is that bit. Chance is 50 %,
and so is every network that does not join a bit with its mark.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from firmware_sim.training.runtime import RUNTIMES
from tests.harness.quick_bundles import quick_bundle
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import Adam

LENGTH, EXAMPLES = 4, 1000


def attention(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 4)(x, x))


NETWORKS: dict[str, Callable[[keras.KerasTensor], keras.KerasTensor]] = {
    "GRU": layers.GRU(8),
    "LSTM": layers.LSTM(8),
    "attention": attention,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (EXAMPLES, LENGTH))
    marked = rng.integers(0, LENGTH, EXAMPLES)
    x = np.stack([2 * bits - 1, np.eye(LENGTH)[marked]], axis=-1).astype(np.float32)
    file = tmp_path_factory.mktemp("recall") / "recall.npz"
    np.savez(file, x=x, y=bits[np.arange(EXAMPLES), marked])
    return file


@pytest.mark.parametrize("name", NETWORKS)
def test_a_device_learns_to_recall(name: str, data: Path, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input((LENGTH, 2))
    stem = layers.Dense(8, activation="tanh", name="stem")(x)
    model = keras.Model(x, layers.Dense(2)(NETWORKS[name](stem)))
    branch = Branch("recall", model, ("stem",), Supervised(optimizer=Adam(0.02)))
    quick_bundle(branch, "weak", tmp_path / "bundle", batch=32)
    command = [sys.executable, "-m", "firmware_sim.device", "--bundle", str(tmp_path / "bundle")]
    command += ["--task", "npz", "--data", str(data), "--isolated", "--seed", "0", "--id", "pi"]
    command += ["--rounds", "2", "--steps", "150"]
    for runtime in RUNTIMES:
        ran = subprocess.run(
            [*command, "--runtime", runtime, "--state", str(tmp_path / runtime)],
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(ran.stdout)["accuracy"] > 0.9, runtime
