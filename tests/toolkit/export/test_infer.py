"""infer.tflite answers what Keras answers, in every quantisation and in both runtimes."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from keras import layers

from firmware_sim.tasks.digits import digit_images
from firmware_sim.training.runtime import Model
from toolkit import zoo
from toolkit.branch.branch import Branch
from toolkit.conversion.flatbuffer import operation, parse
from toolkit.conversion.tflite_internals import schema
from toolkit.errors import ExportError
from toolkit.export.infer import convert_inference, synthetic_examples

# How far a probability may be off: rounding of float32, of float16, and of 8-bit numbers.
TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "dynamic": 0.05, "int8": 0.1}
COUNT = 64
TFLITE_RUNTIME = """\
import sys
import numpy as np
from pathlib import Path
from firmware_sim.training.runtime import Model
folder = Path(sys.argv[1])
for file in folder.glob("*.tflite"):
    model = Model(file, runtime="tflite-runtime")
    answers = [model.call("infer", x=x[None])["output"][0] for x in np.load(folder / "x.npy")]
    np.save(file.with_suffix(".npy"), answers)
"""


@dataclass(frozen=True)
class Converted:
    """One branch in every quantisation, and what Keras answers."""

    folder: Path
    images: npt.NDArray[np.uint8]
    wanted: npt.NDArray[np.float32]

    def file(self, quantisation: str) -> Path:
        return self.folder / f"{quantisation}.tflite"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Large last weights, so that answers differ between digits as those of a trained branch do."""
    keras.utils.set_random_seed(0)
    branch = zoo.build("digits", "lightweight")
    kernel, bias = branch.model.get_layer("light_output").get_weights()
    branch.model.get_layer("light_output").set_weights([30.0 * kernel, bias])
    images = digit_images()[0][:COUNT]
    folder = tmp_path_factory.mktemp("infer")
    for quantisation in TOLERANCES:
        data = convert_inference(branch, quantisation, images)
        (folder / f"{quantisation}.tflite").write_bytes(data)
    wanted = np.asarray(branch.model(images.astype(np.float32) * branch.input_scale))
    assert wanted.std(axis=0).max() > 0.2
    return Converted(folder, images, wanted)


@pytest.mark.parametrize("quantisation", TOLERANCES)
def test_answers_are_near_those_of_keras(converted: Converted, quantisation: str) -> None:
    model = Model(converted.file(quantisation), runtime="ai-edge-litert")
    spec = model.inputs("infer")["x"]
    assert (spec.shape, spec.dtype) == ((1, 8, 8, 1), np.uint8)
    answers = [model.call("infer", x=x[None])["output"][0] for x in converted.images]
    tolerance = TOLERANCES[quantisation]
    np.testing.assert_allclose(answers, converted.wanted, rtol=0, atol=tolerance)
    same = np.argmax(answers, 1) == np.argmax(converted.wanted, 1)
    assert same.mean() > 0.95


def test_tflite_runtime_answers_the_same(converted: Converted) -> None:
    np.save(converted.folder / "x.npy", converted.images)
    command = [sys.executable, "-c", TFLITE_RUNTIME, str(converted.folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    for quantisation, tolerance in TOLERANCES.items():
        answers = np.load(converted.folder / f"{quantisation}.npy")
        np.testing.assert_allclose(
            answers, converted.wanted, rtol=0, atol=tolerance, err_msg=quantisation
        )


def test_sizes_follow_the_quantisation(converted: Converted) -> None:
    sizes = {name: converted.file(name).stat().st_size for name in TOLERANCES}
    assert sizes["float32"] > sizes["float16"] > max(sizes["dynamic"], sizes["int8"])
    weights = 3930  # parameters of the branch
    assert sizes["float32"] - sizes["float16"] == pytest.approx(2 * weights, rel=0.2)
    assert sizes["float16"] - sizes["dynamic"] == pytest.approx(weights, rel=0.2)


def computed(data: bytes) -> dict[str, set[int]]:
    """The types of all tensors that each operation reads and writes."""
    model = parse(data)
    (graph,) = model.subgraphs
    found: dict[str, set[int]] = {}
    for op in graph.operators:
        tensors = [graph.tensors[i] for i in (*op.inputs, *op.outputs) if i >= 0]
        found.setdefault(operation(model, op), set()).update(t.type for t in tensors)
    return found


def test_int8_computes_in_integers(converted: Converted) -> None:
    kinds = schema.TensorType
    types = computed(converted.file("int8").read_bytes())
    assert types.pop("QUANTIZE") == {kinds.UINT8, kinds.INT8}
    assert types.pop("DEQUANTIZE") == {kinds.INT8, kinds.FLOAT32}
    assert types.keys() == {"CONV_2D", "MAX_POOL_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"}
    for operation_name, used in types.items():
        assert used <= {kinds.INT8, kinds.INT32}, operation_name


def test_a_byte_means_itself_whatever_the_calibration_held(converted: Converted) -> None:
    """The digits end at 16: were that spread over a byte, a device would have to rescale."""
    (graph,) = parse(converted.file("int8").read_bytes()).subgraphs
    quantisation = graph.tensors[graph.inputs[0]].quantization
    assert (list(quantisation.scale), list(quantisation.zeroPoint)) == ([1.0], [0])


def small(**settings: Any) -> Branch:
    x = keras.Input((6, 6, 2))
    y = layers.Conv2D(3, 3, activation="relu", name="stem")(x)
    y = layers.Dense(4, activation="softmax")(layers.Flatten()(y))
    return Branch("small", keras.Model(x, y), ("stem",), **settings)


def test_a_branch_of_floats_keeps_its_input_in_int8(tmp_path: Path) -> None:
    branch = small()
    examples = synthetic_examples(branch, 16)
    (tmp_path / "infer.tflite").write_bytes(convert_inference(branch, "int8", examples))
    model = Model(tmp_path / "infer.tflite", runtime="ai-edge-litert")
    assert model.inputs("infer")["x"].dtype == np.float32
    wanted = np.asarray(branch.model(examples))
    answers = [model.call("infer", x=x[None])["output"][0] for x in examples]
    np.testing.assert_allclose(answers, wanted, atol=0.05)


def test_what_the_converter_refuses_is_an_export_error() -> None:
    with pytest.raises(ExportError, match=r"^the converter cannot quantise the branch: "):
        convert_inference(small(), "int8", np.zeros((2, 5, 5, 2), np.float32))


@pytest.mark.parametrize(
    ("dtype", "scale", "highest"),
    [("uint8", 1 / 255, 255), ("uint8", 1 / 16, 16), ("float32", 1, 1)],
)
def test_synthetic_examples_use_the_whole_range(dtype: str, scale: float, highest: float) -> None:
    examples = synthetic_examples(small(input_dtype=dtype, input_scale=scale), 8)
    assert (examples.shape, examples.dtype) == ((8, 6, 6, 2), dtype)
    assert (examples.min(), examples.max()) == (0, highest)
    assert np.array_equal(
        examples, synthetic_examples(small(input_dtype=dtype, input_scale=scale), 8)
    )


def test_recurrent_layers_are_computed_in_integers_without_a_loop() -> None:
    """The converter's calibration does not survive a loop."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5, 3)), layers.GRU(4, name="memory"), layers.Dense(2)])
    branch = Branch("recurrent", model, ("memory",))
    x = np.random.default_rng(0).normal(size=(32, 5, 3)).astype(np.float32)
    data = convert_inference(branch, "int8", x)
    parsed = parse(data)
    names = {operation(parsed, op) for graph in parsed.subgraphs for op in graph.operators}
    assert "WHILE" not in names and "FULLY_CONNECTED" in names
