"""Broadcasting along five axes or more, in four at most.

tflite-runtime 2.14 computes wrong numbers there without a word, or aborts. The converter moves
reshapes past such operations, so only its result can be mended.
"""

from __future__ import annotations

import math

import numpy as np

from toolkit.conversion.building import add_constant, add_tensor, new_operator
from toolkit.conversion.flatbuffer import Model, Operator, Subgraph, operation
from toolkit.conversion.tflite_internals import schema

Shape = tuple[int, ...]

_BINARY = frozenset({"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"})
_MOST_AXES = 4


def flatten_broadcasts(model: Model) -> None:
    """Puts reshapes around every operation of two tensors that broadcasts so many axes."""
    for subgraph in model.subgraphs:
        operators: list[Operator] = []
        for operator in subgraph.operators:
            if operation(model, operator) in _BINARY and _is_deep(subgraph, operator):
                operators += _flattened(model, subgraph, operator)
            else:
                operators.append(operator)
        subgraph.operators = operators


def merged(left: Shape, right: Shape) -> tuple[Shape, Shape]:
    """Both shapes with neighbouring axes that are broadcast alike as one axis."""
    rank = max(len(left), len(right))
    left, right = ((1,) * (rank - len(shape)) + shape for shape in (left, right))
    groups: list[tuple[tuple[bool, bool], list[int], list[int]]] = []
    for m, n in zip(left, right, strict=True):
        if m == n == 1:
            continue  # an axis of one number belongs anywhere
        if groups and (m == n, m > n) == groups[-1][0]:
            groups[-1][1].append(m)
            groups[-1][2].append(n)
        else:
            groups.append(((m == n, m > n), [m], [n]))
    groups = groups or [((True, False), [1], [1])]
    return tuple(math.prod(g[1]) for g in groups), tuple(math.prod(g[2]) for g in groups)


def _is_deep(subgraph: Subgraph, operator: Operator) -> bool:
    left, right = (_shape(subgraph, int(i)) for i in operator.inputs)
    return left != right and max(len(left), len(right)) > _MOST_AXES


def _flattened(model: Model, subgraph: Subgraph, operator: Operator) -> list[Operator]:
    inputs, (output,) = [int(i) for i in operator.inputs], operator.outputs
    kind = subgraph.tensors[output].type
    shapes = merged(*(_shape(subgraph, i) for i in inputs))
    before, flat = list[Operator](), list[int]()
    for tensor, shape in zip(inputs, shapes, strict=True):
        buffer = subgraph.tensors[tensor].buffer
        if model.buffers[buffer].data is not None and len(model.buffers[buffer].data):
            flat.append(add_tensor(subgraph, shape, kind, buffer))
        else:
            before += _copied(model, subgraph, tensor, shape)
            flat.append(int(before[-1].outputs[0]))
    result = add_tensor(subgraph, [max(pair) for pair in zip(*shapes, strict=True)], kind)
    operator.inputs, operator.outputs = np.array(flat, np.int32), np.array([result], np.int32)
    back = new_operator(model, schema.BuiltinOperator.RESHAPE, [result], [int(output)])
    return [*before, operator, back]


def _copied(model: Model, subgraph: Subgraph, tensor: int, shape: Shape) -> list[Operator]:
    """A reshape, and a slice of all of it.

    A reshaped tensor is the same memory, in which tflite-runtime 2.14 lets the next operation write
    its result, even if others still read the tensor in its first shape. A slice is a copy.
    """
    kind = subgraph.tensors[tensor].type
    same, copy = (add_tensor(subgraph, shape, kind) for _ in range(2))
    integers = schema.TensorType.INT32
    begin = add_constant(model, subgraph, np.zeros(len(shape), np.int32), integers)
    size = add_constant(model, subgraph, np.array(shape, np.int32), integers)
    return [
        new_operator(model, schema.BuiltinOperator.RESHAPE, [tensor], [same]),
        new_operator(model, schema.BuiltinOperator.SLICE, [same, begin, size], [copy]),
    ]


def _shape(subgraph: Subgraph, tensor: int) -> Shape:
    shape = subgraph.tensors[tensor].shape
    return () if shape is None else tuple(int(n) for n in shape)
