"""Stored zeros that a variable starts from become an operation that makes them.

The converter stores every zero of the optimiser's slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from toolkit.conversion.flatbuffer import Model, Operator, Subgraph, operation
from toolkit.conversion.tflite_internals import schema

_FILL_FROM = 64  # bytes; below that a stored zero is smaller than the operation that makes it


def fill_zeros(model: Model) -> None:
    """Puts a FILL in place of each constant of zeros that is assigned to a variable."""
    for subgraph in model.subgraphs:
        _fill(model, subgraph)


def _fill(model: Model, subgraph: Subgraph) -> None:
    made: list[Operator] = []
    for operator in subgraph.operators:
        if operation(model, operator) != "ASSIGN_VARIABLE":
            continue
        constant = int(operator.inputs[1])
        tensor = subgraph.tensors[constant]
        data = model.buffers[tensor.buffer].data
        if data is None or len(data) < _FILL_FROM or np.any(np.asarray(data)):
            continue
        shape = np.asarray(tensor.shape, np.int32)
        inputs = [
            _constant(model, subgraph, shape, schema.TensorType.INT32),
            _constant(model, subgraph, np.float32(0.0), schema.TensorType.FLOAT32),
        ]
        tensor.buffer = 0  # no data
        made.append(_operator(model, schema.BuiltinOperator.FILL, inputs, [constant]))
    subgraph.operators = made + list(subgraph.operators)


def _operator(model: Model, builtin: int, inputs: list[int], outputs: list[int]) -> Operator:
    operator = schema.OperatorT()
    operator.opcodeIndex = _opcode(model, builtin)
    operator.inputs = np.array(inputs, np.int32)
    operator.outputs = np.array(outputs, np.int32)
    return operator


def _opcode(model: Model, builtin: int) -> int:
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin:
            return index
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _constant(model: Model, subgraph: Subgraph, value: Any, kind: int) -> int:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(np.asarray(value).tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor = schema.TensorT()
    tensor.shape = np.array(np.shape(value), np.int32)
    tensor.type = kind
    tensor.buffer = len(model.buffers) - 1
    subgraph.tensors.append(tensor)
    return len(subgraph.tensors) - 1
