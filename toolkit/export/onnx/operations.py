"""Program → ONNX, operation by operation; layouts are brought together by transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import checker, helper, numpy_helper

from broker.aggregator.roles import LOCAL
from toolkit.autodiff.naming import named_variables
from toolkit.autodiff.program import Node, Program, Value
from toolkit.autodiff.rules.windows import windows
from toolkit.branch.branch import Branch
from toolkit.errors import UnsupportedOp

Input = Value | str | np.generic | npt.NDArray[Any]  # of a node: a value, its name, or numbers
# (graph, node, *inputs) → the name of the output.
Rule = Callable[..., str]
# Old enough for the runtimes in use, new enough for every operation below.
_OPSET, _IR = 17, 8


def onnx_type(value: Value) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)))


class OnnxGraph:
    """The ONNX graph as it grows; `scope` begins the names of its nodes.

    The tensors called `kept` become initialisers; everything else that is stored is a constant.
    """

    def __init__(self, program: Program, branch: Branch, kept: Sequence[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.names = {program.x: "x"}
        self._x = program.x
        self.scope = ""
        self._constants = program.constants
        self._stored = {value: name for name, value in program.parameters.items()}
        self._variables = named_variables(branch.model)
        self._kept = kept
        self._met: list[str] = []  # kept tensors, in the order of their first use

    def add(self, op: str, *inputs: Input, **attributes: Any) -> str:
        """Appends a node; returns the name of its output."""
        names = [self._read(x) for x in inputs]
        position = len(self.nodes)
        name, output = f"{self.scope}{op}_{position}", f"v{position}"
        self.nodes.append(helper.make_node(op, names, [output], name, **attributes))
        return output

    def translate(self, node: Node, scope: str) -> None:
        """Appends an operation of the program; raises `UnsupportedOp` if ONNX has none such."""
        if node.op not in OPS:
            raise UnsupportedOp(node.layer, node.op, "it has no counterpart in ONNX")
        self.scope = scope
        self.names[node.output] = OPS[node.op](self, node, *node.inputs)

    def model(self, name: str, outputs: Sequence[Value]) -> onnx.ModelProto:
        """Returns a valid model that computes these values from the input."""
        model = helper.make_model(
            helper.make_graph(
                self.nodes,
                name,
                [_info("x", self._x)],
                [_info(self.names[value], value) for value in outputs],
                self.initialisers(),
            ),
            producer_name="stemshare",
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR,
        )
        checker.check_model(model, full_check=True)
        return model

    def setting(self, node: Node, value: Value) -> Any:
        """The numbers of an input that shapes the graph itself."""
        if value not in self._constants:
            raise UnsupportedOp(node.layer, node.op, "a setting that is computed")
        return self._constants[value].tolist()

    def initialisers(self) -> list[onnx.TensorProto]:
        unused = [name for name in self._kept if name not in self._met]
        return [
            numpy_helper.from_array(np.asarray(self._variables[name]), name)
            for name in self._met + unused
        ]

    def _read(self, x: Input) -> str:
        """The name of an input; what is stored enters the graph when it is first read."""
        if isinstance(x, str):
            return x
        if not isinstance(x, Value):
            return self._constant(x, "constant/")
        if x not in self.names:
            self.names[x] = self._enter(x)
        return self.names[x]

    def _enter(self, value: Value) -> str:
        if value in self._constants:
            return self._constant(self._constants[value], "constant/")
        name = self._stored[value]
        if name not in self._kept:
            return self._constant(self._variables[name], LOCAL)
        self._met.append(name)
        return name

    def _constant(self, numbers: Any, prefix: str) -> str:
        scope, self.scope = self.scope, prefix
        output = self.add("Constant", value=numpy_helper.from_array(np.asarray(numbers)))
        self.scope = scope
        return output


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_type(value), value.shape)


def _same(op: str) -> Rule:
    """An operation that ONNX has too, with the same inputs."""
    return lambda g, node, *inputs: g.add(op, *inputs)


def _squared_difference(g: OnnxGraph, _: Node, a: Value, b: Value) -> str:
    difference = g.add("Sub", a, b)
    return g.add("Mul", difference, difference)


def _bias_add(g: OnnxGraph, node: Node, x: Value, bias: Value) -> str:
    if node.attrs["data_format"] != "NHWC":
        raise UnsupportedOp(node.layer, node.op, "channels before pixels")
    return g.add("Add", x, bias)


def _matmul(flip_a: str, flip_b: str) -> Rule:
    def rule(g: OnnxGraph, node: Node, a: Value, b: Value) -> str:
        return g.add("MatMul", factor(g, a, node.attrs[flip_a]), factor(g, b, node.attrs[flip_b]))

    def factor(g: OnnxGraph, x: Value, flip: bool) -> Input:
        *lead, row, column = range(len(x.shape))
        return g.add("Transpose", x, perm=[*lead, column, row]) if flip else x

    return rule


def _conv2d(g: OnnxGraph, node: Node, x: Value, kernel: Value) -> str:
    h, w, inputs, _ = kernel.shape
    weights = g.add("Transpose", kernel, perm=[3, 2, 0, 1])
    return _convolution(g, node, (h, w), weights, groups=x.shape[3] // inputs)


def _depthwise(g: OnnxGraph, node: Node, _: Value, kernel: Value) -> str:
    """m filters for each of c channels: [h, w, c, m] → [c·m, 1, h, w], in c groups."""
    h, w, c, m = kernel.shape
    flat = g.add("Reshape", kernel, _ints(h, w, 1, c * m))
    weights = g.add("Transpose", flat, perm=[3, 2, 0, 1])
    return _convolution(g, node, (h, w), weights, groups=c)


def _convolution(
    g: OnnxGraph, node: Node, kernel: tuple[int, int], weights: str, groups: int
) -> str:
    dilations = [window.dilation for window in windows(node, kernel)]
    return _sliding(g, node, "Conv", kernel, weights, dilations=dilations, group=groups)


def _pool(op: str) -> Rule:
    """ONNX's mean leaves padding out, as TensorFlow's does."""
    return lambda g, node, x: _sliding(g, node, op, node.attrs["ksize"][1:3])


def _sliding(
    g: OnnxGraph, node: Node, op: str, kernel: tuple[int, int], *weights: str, **attributes: Any
) -> str:
    """A window over NHWC, by ONNX's operation over NCHW."""
    rows, columns = windows(node, kernel)
    attributes |= {
        "kernel_shape": kernel,
        "strides": [rows.stride, columns.stride],
        "pads": [rows.before, columns.before, rows.after, columns.after],
    }
    x = g.add("Transpose", node.inputs[0], perm=[0, 3, 1, 2])
    return g.add("Transpose", g.add(op, x, *weights, **attributes), perm=[0, 2, 3, 1])


def _reduce(op: str) -> Rule:
    def rule(g: OnnxGraph, node: Node, x: Value, axes: Value) -> str:
        along = np.ravel(g.setting(node, axes)).tolist()
        keep = int(node.attrs["keep_dims"])
        if not along:  # which ONNX would take for all of them
            return g.add("Identity", x)
        if op == "ReduceSum":  # in this opset the only one whose axes are an input
            return g.add(op, x, _ints(*along), keepdims=keep)
        return g.add(op, x, axes=along, keepdims=keep)

    return rule


def _reshape(g: OnnxGraph, node: Node, x: Input) -> str:
    return g.add("Reshape", x, _ints(*node.output.shape))


def _transpose(g: OnnxGraph, node: Node, x: Value, order: Value) -> str:
    return g.add("Transpose", x, perm=g.setting(node, order))


def _pad(g: OnnxGraph, node: Node, x: Value, paddings: Value, *fill: Value) -> str:
    before, after = zip(*g.setting(node, paddings), strict=True)
    return g.add("Pad", x, _ints(*before, *after), *fill)


def _concatenate(g: OnnxGraph, node: Node, *inputs: Value) -> str:
    *parts, axis = inputs
    return g.add("Concat", *parts, axis=g.setting(node, axis))


def _by_setting(op: str) -> Rule:
    """Tile and Expand take their numbers as int64."""
    return lambda g, node, x, numbers: g.add(op, x, _ints(*g.setting(node, numbers)))


def _strided_slice(g: OnnxGraph, node: Node, x: Value, begin: Value, end: Value, _: Value) -> str:
    attrs = node.attrs
    taken = []
    for axis, (first, last) in enumerate(
        zip(g.setting(node, begin), g.setting(node, end), strict=True)
    ):
        pixels, bit = range(x.shape[axis]), 1 << axis
        if attrs["shrink_axis_mask"] & bit:
            taken.append(pixels[first:][:1])
        else:
            last = None if attrs["end_mask"] & bit else last
            taken.append(pixels[None if attrs["begin_mask"] & bit else first : last])
    starts, stops = _ints(*(r.start for r in taken)), _ints(*(r.stop for r in taken))
    return _reshape(g, node, g.add("Slice", x, starts, stops, _ints(*range(len(taken)))))


def _reverse(g: OnnxGraph, node: Node, x: Value, axes: Value) -> str:
    axis, backwards = _ints(*g.setting(node, axes)), _ints(-1)
    return g.add("Slice", x, backwards, _ints(np.iinfo(np.int64).min), axis, backwards)


def _largest_place(g: OnnxGraph, node: Node, x: Value, axis: Value) -> str:
    found = g.add("ArgMax", x, axis=g.setting(node, axis), keepdims=0)
    return g.add("Cast", found, to=onnx_type(node.output))


def _space_to_batch(g: OnnxGraph, node: Node, x: Value, block: Value, paddings: Value) -> str:
    """Every n-th pixel in a picture of its own: how TensorFlow dilates a depthwise convolution."""
    high, wide = g.setting(node, block)
    (top, bottom), (left, right) = g.setting(node, paddings)
    _, h, w, c = node.output.shape
    padded = g.add("Pad", x, _ints(0, top, left, 0, 0, bottom, right, 0))
    split = g.add("Reshape", padded, _ints(x.shape[0], h, high, w, wide, c))
    return _reshape(g, node, g.add("Transpose", split, perm=[2, 4, 0, 1, 3, 5]))


def _batch_to_space(g: OnnxGraph, node: Node, x: Value, block: Value, crops: Value) -> str:
    high, wide = g.setting(node, block)
    (top, bottom), (left, right) = g.setting(node, crops)
    _, h, w, c = x.shape
    n = node.output.shape[0]
    split = g.add("Reshape", x, _ints(high, wide, n, h, w, c))
    mixed = g.add("Transpose", split, perm=[2, 3, 0, 4, 1, 5])
    whole = g.add("Reshape", mixed, _ints(n, h * high, w * wide, c))
    stops = _ints(h * high - bottom, w * wide - right)
    return g.add("Slice", whole, _ints(top, left), stops, _ints(1, 2))


def _ints(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


_SAME_NAME = (
    *("Sub", "Mul", "Pow", "Neg", "Exp", "Log", "Abs", "Sqrt", "Erf", "Greater", "Less", "Equal"),
    *("Sin", "Cos", "Floor", "Ceil", "Round", "Sign"),
    *("Relu", "Elu", "Sigmoid", "Tanh", "Softplus", "Softmax"),
)
_OTHER_NAME = {
    "AddV2": "Add",
    "RealDiv": "Div",
    "Maximum": "Max",
    "Minimum": "Min",
    "GreaterEqual": "GreaterOrEqual",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "LogicalNot": "Not",
    "SelectV2": "Where",
    "StopGradient": "Identity",
}
OPS: dict[str, Rule] = {
    **{op: _same(op) for op in _SAME_NAME},
    **{op: _same(other) for op, other in _OTHER_NAME.items()},
    "Cast": lambda g, node, x: g.add("Cast", x, to=onnx_type(node.output)),
    "LeakyRelu": lambda g, node, x: g.add("LeakyRelu", x, alpha=node.attrs["alpha"]),
    "Relu6": lambda g, _, x: g.add("Clip", x, np.float32(0), np.float32(6)),
    "Rsqrt": lambda g, _, x: g.add("Reciprocal", g.add("Sqrt", x)),
    "Square": lambda g, _, x: g.add("Mul", x, x),
    "SquaredDifference": _squared_difference,
    "Erfc": lambda g, _, x: g.add("Sub", np.float32(1), g.add("Erf", x)),
    "BiasAdd": _bias_add,
    "MatMul": _matmul("transpose_a", "transpose_b"),
    "BatchMatMulV2": _matmul("adj_x", "adj_y"),
    "Conv2D": _conv2d,
    "DepthwiseConv2dNative": _depthwise,
    "MaxPool": _pool("MaxPool"),
    "AvgPool": _pool("AveragePool"),
    "Mean": _reduce("ReduceMean"),
    "Sum": _reduce("ReduceSum"),
    "Max": _reduce("ReduceMax"),
    "ArgMax": _largest_place,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Pad": _pad,
    "PadV2": _pad,
    "ConcatV2": _concatenate,
    "Tile": _by_setting("Tile"),
    "BroadcastTo": _by_setting("Expand"),
    "GatherV2": lambda g, _, table, places, axis: g.add("Gather", table, places, axis=0),
    "ReverseV2": _reverse,
    "StridedSlice": _strided_slice,
    "SpaceToBatchND": _space_to_batch,
    "BatchToSpaceND": _batch_to_space,
}
