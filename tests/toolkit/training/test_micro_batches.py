"""Steps in micro-batches are those of the full batch, in both runtimes.

Without dropout and batch normalisation, which look at a batch as a whole.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from toolkit import zoo
from toolkit.branch.branch import Branch
from toolkit.conversion.convert import convert_module
from toolkit.errors import ExportError
from toolkit.training.inputs import training_inputs
from toolkit.training.module import TrainingModule

BATCH, STEPS = 8, 6
TAKER = Path(__file__).with_name("take_micro_batches.py")
ROOT = Path(__file__).parents[3]
Answers = dict[str, npt.NDArray[Any]]


def plain(task: str, branch: str, topology: str) -> Branch:
    """Without dropout, and with an ε that does not blow up rounding errors."""
    keras.utils.set_random_seed(7)
    built = zoo.build(task, branch, topology)
    for layer in built.model.layers:
        if hasattr(layer, "rate"):
            layer.rate = 0.0
    learning = built.learning
    optimizer: Any = learning.optimizer
    optimizer = replace(optimizer, epsilon=1e-3)
    return replace(built, learning=replace(learning, optimizer=optimizer))


def taken(folder: Path, branch: Branch, micro_batch: int, runtime: str) -> Answers:
    """What a device's process has after STEPS batches."""
    module = TrainingModule(branch, batch=BATCH, micro_batch=micro_batch, runtime=runtime)
    assert ("step" in module.signatures()) == (micro_batch < BATCH)
    (folder / "model.tflite").write_bytes(convert_module(module))
    subprocess.run(
        [sys.executable, str(TAKER), runtime, str(folder)],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    with np.load(folder / "answers.npz") as found:
        return dict(found)


@pytest.mark.parametrize(
    ("task", "name", "topology", "micro_batch", "runtime"),
    [
        ("minatar", "lightweight", "share-first", 4, "ai-edge-litert"),
        ("digits", "complex", "two-loss", 2, "ai-edge-litert"),  # the lightweight one is in it
        ("cartpole", "complex", "two-loss", 1, "tflite-runtime"),
    ],
)
def test_micro_batches_take_the_full_batchs_steps(
    tmp_path: Path, task: str, name: str, topology: str, micro_batch: int, runtime: str
) -> None:
    branch = plain(task, name, topology)
    rng = np.random.default_rng(1)
    batches = {}
    for number in range(STEPS):
        for key, spec in training_inputs(branch, BATCH).items():
            top = 2 if key in ("reward", "done") else 6 if key in ("y", "action") else 17
            made = rng.integers(0, top, spec.shape)
            batches[f"{number}/{key}"] = made.astype(spec.dtype.as_numpy_dtype)
    np.savez(tmp_path / "batches.npz", **batches)

    whole = taken(tmp_path, branch, BATCH, runtime)
    parts = taken(tmp_path, branch, micro_batch, runtime)
    assert parts.keys() == whole.keys()
    for key, value in whole.items():
        if "/accumulated/" in key:
            assert not value.any() and not parts[key].any(), f"{key} was not cleared"
        else:
            np.testing.assert_allclose(parts[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
    assert whole["trained:optimizer/step"] == STEPS
    weights = branch.weights()
    for tensor in branch.trainable_names:
        assert np.abs(whole[f"trained:{tensor}"] - weights[tensor]).max() > 0, tensor
    for tensor in branch.shared_names:
        assert np.abs(whole[f"dθ:{tensor}"]).max() > 0, tensor


@pytest.mark.parametrize("micro_batch", [0, -1, 3, 16])
def test_a_micro_batch_divides_the_batch(micro_batch: int) -> None:
    with pytest.raises(ExportError) as caught:
        TrainingModule(
            zoo.build("digits", "lightweight"),
            batch=BATCH,
            micro_batch=micro_batch,
            runtime="ai-edge-litert",
        )
    assert str(caught.value) == (f"a batch of 8 cannot be taken in micro-batches of {micro_batch}.")
