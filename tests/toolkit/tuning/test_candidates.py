"""Candidates are the layer itself: each computes what TensorFlow's convolution computes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from firmware_sim.training.runtime import RUNTIMES
from firmware_sim.tune import INDEX, SET, read_index
from toolkit.autodiff.lower import Choice, Layer
from toolkit.autodiff.rules.formulations import FORMULATIONS
from toolkit.conversion.convert import convert_module
from toolkit.errors import ExportError
from toolkit.tuning.candidates import Candidates, write_candidates

BATCH = 2
LAYERS = [
    Layer((6, 7, 3), (3, 2, 5)),
    Layer((6, 7, 3), (2, 2, 5), dilation=(2, 1)),
    Layer((6, 5, 2), (2, 3, 4), first=True),
]


SMALL_PARTS = 256  # bytes: these layers are divided into single examples


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_every_candidate_computes_the_convolution_and_its_gradients(
    layer: Layer, tmp_path: Path
) -> None:
    made = Candidates(layer, BATCH, SMALL_PARTS)
    assert list(made.choices.values()) == [Choice(name, SMALL_PARTS) for name in FORMULATIONS]
    model, inputs = tmp_path / "model.tflite", tmp_path / "inputs.npz"
    model.write_bytes(convert_module(made))
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(made.inputs[n].shape, np.float32) for n in ("x", "dy"))
    kernel = rng.standard_normal(made.kernel.shape, np.float32)
    np.savez(inputs, x=x, dy=dy, kernel=kernel)

    with tf.GradientTape() as tape:
        sources = {"dx": tf.constant(x), "dkernel": tf.constant(kernel)}
        tape.watch(sources)
        y = tf.nn.conv2d(sources["dx"], sources["dkernel"], 1, "VALID", dilations=layer.dilation)
    expected = {"y": y, **tape.gradient(y, sources, output_gradients=tf.constant(dy))}
    if layer.first:
        del expected["dx"]

    for runtime in RUNTIMES:
        answers = tmp_path / f"{runtime}.npz"
        script = Path(__file__).with_name("compute_candidates.py")
        command = [sys.executable, *map(str, (script, runtime, model, inputs, answers))]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        found = dict(np.load(answers))
        assert found.keys() == {f"{name}/{t}" for name in made.choices for t in expected}
        for name, value in found.items():
            wanted = expected[name.rpartition("/")[2]]
            np.testing.assert_allclose(value, wanted, atol=2e-5, err_msg=f"{runtime} {name}")


def test_choices_that_make_the_same_graph_are_one() -> None:
    pixel = Candidates(Layer((8, 8, 2), (1, 1, 4)), 2, 2**20)  # nothing to gather
    assert list(pixel.choices) == ["convolution", "both", "columns", "none"]  # rows are as both


def test_the_index_describes_the_files_and_earlier_ones_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "candidates"
    heard: list[Any] = []
    folder.mkdir()
    (folder / INDEX).write_text("{}")
    (folder / "7.tflite").write_bytes(b"an earlier layer")
    write_candidates([LAYERS[2]], 3, folder, part_bytes=SMALL_PARTS, progress=heard.append)
    assert heard == ["layer 1 of 1"]
    index = read_index(folder)
    assert index.batch == 3
    (layer,) = index.layers
    assert (layer.name, layer.model) == ("6x5x2 2x3x4 first", folder / "0.tflite")
    assert layer.choices["rows"] == {"formulation": "rows", "part_bytes": 256}
    assert SET not in layer.choices
    assert sorted(path.name for path in folder.iterdir()) == ["0.tflite", INDEX]


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ExportError) as caught:
        write_candidates(LAYERS, BATCH, tmp_path, part_bytes=SMALL_PARTS)
    assert str(caught.value) == (
        f"{tmp_path} exists and does not hold candidates; choose another place."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
