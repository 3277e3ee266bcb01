"""The rewritten flatbuffer computes what the converter's does, under the true names, in less."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from toolkit.conversion.rewrite import rewrite
from toolkit.conversion.tflite_internals import schema

SLOT = 3000  # numbers, all zero at first
NAMES = {
    "step": ({"i0": "conv1/input", "i1": "y"}, {"o0": "loss", "o1": "conv1/kernel"}),
    "peek": ({}, {"o0": "optimizer/slot"}),
}


class Tiny(tf.Module):
    """Two signatures over three variables, two of which hold the same, and equal constants."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.start = rng.normal(size=(8, 8)).astype(np.float32)
        self.table = rng.normal(size=(4, 8)).astype(np.float32)
        self.kernel = tf.Variable(self.start)
        self.twin = tf.Variable(self.start)
        self.slot = tf.Variable(np.zeros(SLOT, np.float32))

    @tf.function(autograph=False)
    def step(self, i0: tf.Tensor, i1: tf.Tensor) -> dict[str, tf.Tensor]:
        """Reads a variable, writes it, and uses both what it was and what it is."""
        old = self.kernel.read_value()
        hidden = tf.tanh(i0 @ old + tf.constant(self.table))
        self.kernel.assign(old + 0.1 * (tf.transpose(hidden) @ (hidden - self.table)))
        new = self.kernel.read_value()
        loss = tf.reduce_sum((hidden @ self.twin.read_value() - i1) ** 2)
        self.slot.assign(self.slot.read_value() * 0.5 + loss)
        return {"o0": loss, "o1": new - old}

    @tf.function(autograph=False)
    def peek(self) -> dict[str, tf.Tensor]:
        return {"o0": self.slot.read_value()}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = str(tmp_path_factory.mktemp("tiny"))
    module = Tiny()
    frame = tf.TensorSpec((4, 8), tf.float32, name="i0")
    wanted = tf.TensorSpec((4, 8), tf.float32, name="i1")
    signatures = {
        "step": module.step.get_concrete_function(frame, wanted),
        "peek": module.peek.get_concrete_function(),
    }
    tf.saved_model.save(module, folder, signatures=signatures)
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(signatures))
    converter.experimental_enable_resource_variables = True
    return bytes(converter.convert())


@pytest.fixture(scope="module")
def rewritten(converted: bytes) -> bytes:
    return rewrite(converted, NAMES)


def parsed(data: bytes) -> Any:
    return schema.ModelT.InitFromPackedBuf(data, 0)


def content(model: Any, tensor: Any) -> bytes:
    data = model.buffers[tensor.buffer].data
    return b"" if data is None else np.asarray(data, np.uint8).tobytes()


def test_signatures_have_their_true_names(rewritten: Any) -> None:
    assert Interpreter(model_content=rewritten).get_signature_list() == {
        "peek": {"inputs": [], "outputs": ["optimizer/slot"]},
        "step": {"inputs": ["conv1/input", "y"], "outputs": ["conv1/kernel", "loss"]},
    }


def test_results_stay_the_same(converted: Any, rewritten: Any) -> None:
    """Several steps, since the order of reading and writing a variable shows only then."""
    before, after = Interpreter(model_content=converted), Interpreter(model_content=rewritten)
    rng = np.random.default_rng(1)
    losses = []
    for _ in range(3):
        x, y = rng.normal(size=(2, 4, 8)).astype(np.float32)
        expected = before.get_signature_runner("step")(i0=x, i1=y)
        found = after.get_signature_runner("step")(**{"conv1/input": x, "y": y})
        np.testing.assert_allclose(found["loss"], expected["o0"], rtol=1e-6)
        np.testing.assert_allclose(found["conv1/kernel"], expected["o1"], rtol=1e-5, atol=1e-6)
        losses.append(float(found["loss"]))
    slot = after.get_signature_runner("peek")()["optimizer/slot"]
    np.testing.assert_allclose(slot, before.get_signature_runner("peek")()["o0"], rtol=1e-6)
    total = losses[0] / 4 + losses[1] / 2 + losses[2]
    np.testing.assert_allclose(slot, np.full(SLOT, total), rtol=1e-5)


def test_stored_zeros_vanish_and_are_there_when_it_runs(converted: Any, rewritten: Any) -> None:
    assert bytes(4 * SLOT) in converted
    assert bytes(64) not in rewritten
    slot = Interpreter(model_content=rewritten).get_signature_runner("peek")()["optimizer/slot"]
    np.testing.assert_array_equal(slot, np.zeros(SLOT, np.float32))


def test_equal_numbers_are_stored_once(rewritten: Any) -> None:
    module = Tiny()
    assert rewritten.count(module.start.tobytes()) == 1  # the kernel's and its twin's
    assert rewritten.count(module.table.tobytes()) == 1
    contents = [
        np.asarray(b.data).tobytes() for b in parsed(rewritten).buffers if b.data is not None
    ]
    assert len(contents) == len(set(contents))


def test_equal_constants_of_a_subgraph_are_one_tensor(rewritten: Any) -> None:
    model = parsed(rewritten)
    for subgraph in model.subgraphs:
        constants = [
            (
                content(model, tensor),
                tensor.type,
                tuple(() if tensor.shape is None else tensor.shape),
            )
            for tensor in subgraph.tensors
            if content(model, tensor)
        ]
        assert len(constants) == len(set(constants))


def test_constants_are_aligned(rewritten: Any) -> None:
    """Both runtimes read tensors in place, and expect them on 16 bytes."""
    module = Tiny()
    assert rewritten.index(module.start.tobytes()) % 16 == 0
    assert rewritten.index(module.table.tobytes()) % 16 == 0


def test_nothing_is_left_of_the_converters_labels(converted: Any, rewritten: Any) -> None:
    assert b"StatefulPartitionedCall" in converted
    assert b"StatefulPartitionedCall" not in rewritten
    assert rewritten[4:8] == b"TFL3"
    assert len(rewritten) < len(converted) - 4 * SLOT
    every = [op for subgraph in parsed(rewritten).subgraphs for op in subgraph.operators]
    fills = len(every) - sum(len(subgraph.operators) for subgraph in parsed(converted).subgraphs)
    assert fills == 1  # the slot's zeros


def test_the_file_can_be_loaded_from_disk(rewritten: Any, tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(rewritten)
    interpreter = Interpreter(model_path=str(tmp_path / "model.tflite"))
    step = interpreter.get_signature_runner("step")
    zeros = np.zeros((4, 8), np.float32)
    answer = step(**{"conv1/input": zeros, "y": zeros})
    module = Tiny()
    expected = np.sum((np.tanh(module.table) @ module.start) ** 2)
    np.testing.assert_allclose(answer["loss"], expected, rtol=1e-5)


class Alike(tf.Module):
    """Two signatures that do nearly the same, with reshapes and operations without options."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(np.arange(12, dtype=np.float32).reshape(3, 4))

    def _common(self, i0: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(i0, [4, 3]) @ self.kernel.read_value()
        return tf.reshape(tf.nn.relu(tf.sin(rows) + tf.exp(rows * 0.01)), [2, 8])

    @tf.function(autograph=False)
    def first(self, i0: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"o0": self._common(i0)}

    @tf.function(autograph=False)
    def second(self, i0: tf.Tensor) -> dict[str, tf.Tensor]:
        y = self._common(i0)
        self.kernel.assign(self.kernel.read_value() * 2.0)
        return {"o0": tf.cos(y)}


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = str(tmp_path_factory.mktemp("alike"))
    module = Alike()
    frame = tf.TensorSpec((2, 6), tf.float32, name="i0")
    signatures = {
        "first": module.first.get_concrete_function(frame),
        "second": module.second.get_concrete_function(frame),
    }
    tf.saved_model.save(module, folder, signatures=signatures)
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(signatures))
    converter.experimental_enable_resource_variables = True
    names = ({"i0": "x"}, {"o0": "y"})
    return rewrite(bytes(converter.convert()), {"first": names, "second": names})


def test_signatures_that_are_alike_share_lists_and_compute_their_own(alike: Any) -> None:
    model = schema.Model.GetRootAs(alike)
    lists = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    places = [subgraph._tab.Vector(subgraph._tab.Offset(4)) for subgraph in lists]
    assert places[0] == places[1]  # field 4: the tensors
    assert lists[0].OperatorsLength() != lists[1].OperatorsLength()

    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    rows = x.reshape(4, 3) @ np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = np.maximum(np.sin(rows) + np.exp(rows * 0.01), 0).reshape(2, 8)
    interpreter = Interpreter(model_content=alike)
    first, second = (interpreter.get_signature_runner(name) for name in ("first", "second"))
    np.testing.assert_allclose(first(x=x)["y"], expected, atol=1e-5)
    np.testing.assert_allclose(second(x=x)["y"], np.cos(expected), atol=1e-5)
    doubled = np.maximum(np.sin(2 * rows) + np.exp(rows * 0.02), 0).reshape(2, 8)
    np.testing.assert_allclose(first(x=x)["y"], doubled, atol=1e-5)


def test_what_a_runtime_assumes_is_not_written(alike: Any) -> None:
    model = parsed(alike)
    assert not model.metadata
    plain = {schema.BuiltinOperator.MUL, schema.BuiltinOperator.SIN, schema.BuiltinOperator.EXP}
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            kind = max(code.builtinCode, code.deprecatedBuiltinCode)
            if kind in plain:
                assert operator.builtinOptions is None
            if kind == schema.BuiltinOperator.ADD:
                relu = schema.ActivationFunctionType.RELU
                assert operator.builtinOptions.fusedActivationFunction == relu
            if kind == schema.BuiltinOperator.RESHAPE:
                (output,) = operator.outputs
                assert len(operator.inputs) == 1
                assert list(operator.builtinOptions.newShape) == list(
                    subgraph.tensors[output].shape
                )
