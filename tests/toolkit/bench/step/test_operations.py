"""A training step taken apart: every operation is there, and computes alone what it did before."""

from pathlib import Path

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import layers

from firmware_sim.training.runtime import RUNTIMES
from toolkit.bench.step import operations
from toolkit.bench.step.torch_step import describe
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.conversion.convert import convert_module
from toolkit.conversion.flatbuffer import operation, parse
from toolkit.training.module import TrainingModule
from toolkit.zoo import build


@pytest.fixture(scope="module")
def model() -> bytes:
    net = keras.Sequential(
        [keras.Input((6, 6, 2)), layers.Conv2D(3, 3, name="first"), layers.Flatten()]
    )
    net.add(layers.Dense(4, name="logits"))
    branch = Branch("test", net, ("first",), Supervised())
    return convert_module(TrainingModule(branch, batch=4, runtime="ai-edge-litert"))


def test_every_operation_of_the_step_is_counted(model: bytes) -> None:
    found = operations.split(model)
    whole = parse(model)
    index = next(s.subgraphIndex for s in whole.signatureDefs if s.signatureKey == b"train")
    kinds = [operation(whole, op) for op in whole.subgraphs[index].operators]
    computing = [kind for kind in kinds if "VAR" not in kind and kind != "CALL_ONCE"]
    assert sum(one.count for one in found) == len(computing)
    assert {one.kind for one in found} == set(computing)


def test_an_operation_alone_computes_what_its_text_says(model: bytes) -> None:
    products = [one for one in operations.split(model) if one.kind == "BATCH_MATMUL"]
    assert products
    for one in products:
        interpreter = Interpreter(model_content=one.model)
        interpreter.allocate_tensors()
        rng = np.random.default_rng(0)
        a, b = (rng.random(d["shape"], np.float32) for d in interpreter.get_input_details())
        for detail, value in zip(interpreter.get_input_details(), (a, b), strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        left = a.swapaxes(-1, -2) if "adjX=True" in one.text else a
        np.testing.assert_allclose(found, left @ b, rtol=1e-5)
        assert "x".join(map(str, found.shape)) in one.text


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_is_timed_in_either_runtime(model: bytes, runtime: str, tmp_path: Path) -> None:
    found = operations.split(model)
    timed = operations.time_operations(found, tmp_path, runtime=runtime, threads=1)
    assert set(timed) == {one.text for one in found}
    assert all(entry["seconds"] > 0 for entry in timed.values())


def test_chains_are_described_for_pytorch_and_others_are_not() -> None:
    network = describe(build("cifar10", "lightweight", "share-first"), 32)
    assert network is not None
    kinds = [layer["kind"] for layer in network["layers"]]
    assert kinds[:3] == ["Conv2D", "Conv2D", "MaxPooling2D"] and kinds[-2:] == ["Dense", "Softmax"]
    assert network["inputs"]["x"] == [[32, 32, 32, 3], "|u1"]
    assert describe(build("cifar10", "complex", "cascading"), 32) is None
