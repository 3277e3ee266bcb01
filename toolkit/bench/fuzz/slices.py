"""Slices as a target: shared.onnx, which the aggregator reads."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from broker.aggregator.slice_file import MERGE, read_slice
from broker.errors import SliceError
from toolkit.bench.fuzz.target import Parser, Target, check, check_sentence


def _read_slice(data: bytes) -> None:
    try:
        found, values = read_slice(data)
    except SliceError as error:
        check_sentence(error)
        return
    for tensor in found.tensors:
        value = values[tensor.name]
        good = value.shape == tensor.shape and value.dtype == np.float32
        check(good and bool(np.isfinite(value).all()), "a malformed tensor is accepted.")


def _slice_seeds() -> list[bytes]:
    rng = np.random.default_rng(0)
    shapes = {"conv/kernel": (3, 2, 3, 3), "dense/kernel": (12, 5), "dense/bias": (5,)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    constant = numpy_helper.from_array(np.array([-1, 12], np.int64), "shape")
    nodes = [
        helper.make_node(
            "Conv", ["x", "conv/kernel"], ["a"], "conv/Conv", kernel_shape=[3, 3], pads=[0] * 4
        ),
        helper.make_node("Relu", ["a"], ["b"], "between/relu/Relu"),
        helper.make_node("Constant", [], ["shape"], "local/shape", value=constant),
        helper.make_node("Reshape", ["b", "shape"], ["c"], "between/flat/Reshape"),
        helper.make_node("MatMul", ["c", "dense/kernel"], ["d"], "dense/MatMul"),
        helper.make_node("Add", ["d", "dense/bias"], ["y"], "dense/Add"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])
    graph = helper.make_graph(nodes, "slice", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    plain: bytes = model.SerializeToString()
    helper.set_model_props(model, {MERGE: "mean"})
    stated: bytes = model.SerializeToString()
    return [plain, stated]


TARGETS = (Target("slice", "shared.onnx", _slice_seeds, lambda _: Parser(_read_slice)),)
