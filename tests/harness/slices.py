"""A small slice on disk, for fleets whose devices train no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from broker.aggregator.slice_file import read_slice
from broker.protocol.slice import Slice, Tensors


@dataclass(frozen=True)
class SliceFile:
    """A slice on disk, and what is in it."""

    path: Path
    slice: Slice
    start: Tensors


@pytest.fixture
def small_slice(tmp_path: Path) -> SliceFile:
    """x·first/kernel + first/bias, then ·second/kernel: 50 parameters."""
    rng = np.random.default_rng(0)
    shapes = {"first/kernel": (6, 5), "first/bias": (5,), "second/kernel": (5, 3)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "first/kernel"], ["a"], "shared/1/MatMul"),
        helper.make_node("Add", ["a", "first/bias"], ["b"], "shared/1/Add"),
        helper.make_node("MatMul", ["b", "second/kernel"], ["y"], "shared/2/MatMul"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "slice", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    path = tmp_path / "shared.onnx"
    onnx.save(model, path)
    return SliceFile(path, *read_slice(path))
