"""Parameters and operations of a branch, counted as the paper counts them.

Operations: multiply-accumulates, plus one per bias, activation or addition that is computed.
Pooling, dropout and moving numbers about count nothing; neither does scaling the input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from toolkit.autodiff import Node, Program
from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ

_FREE = frozenset(
    {"Cast", "Reshape", "Transpose", "Pad", "PadV2", "ConcatV2", "Tile", "StridedSlice"}
    | {"MaxPool", "AvgPool", "BroadcastTo", "StopGradient", "ReverseV2", "GatherV2"}
)

_PRODUCTS = frozenset({"Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2"})


@dataclass(frozen=True)
class Counts:
    parameters: int
    operations: int
    shared_parameters: int


def count(branch: Branch) -> Counts:
    """Counts one inference on one example."""
    program = _program(branch)
    weights = branch.weights()
    return Counts(
        parameters=sum(weights[name].size for name in branch.trainable_names),
        operations=sum(operations_of(node) for node in program.nodes),
        shared_parameters=sum(weights[name].size for name in branch.shared_names),
    )


def training_operations(branch: Branch) -> int:
    """Multiply-accumulates of one training step per example: the matrix products it needs.

    Forward, weight gradient, and input gradient unless nothing trainable is below; double
    Q-learning adds a forward pass of either network on the next observation.
    """
    program = _program(branch)
    active = program.active(frozenset(branch.trainable_names))
    forwards = 3 if isinstance(branch.learning, DoubleQ) else 1
    total = 0
    for node in program.nodes:
        if node.op in _PRODUCTS:
            total += operations_of(node) * (forwards + 1 + (node.inputs[0] in active))
    return total


def _program(branch: Branch) -> Program:
    """One inference on one example that is float32 and scaled already."""
    prepared = replace(branch, input_dtype="float32", input_scale=1.0)
    return prepared.trace(batch=1, training=False)


def operations_of(node: Node) -> int:
    """Multiplications and additions of one node."""
    if node.op in _FREE:
        return 0
    if node.op == "Conv2D":
        high, wide, channels, _ = node.inputs[1].shape
        return node.output.size * high * wide * channels
    if node.op == "DepthwiseConv2dNative":
        high, wide, _, _ = node.inputs[1].shape
        return node.output.size * high * wide
    if node.op in ("MatMul", "BatchMatMulV2"):
        return node.output.size * node.inputs[0].shape[-1]
    if node.op in ("Sum", "Mean", "Max"):
        return math.prod(node.inputs[0].shape)
    return node.output.size
