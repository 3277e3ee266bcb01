"""New operators and tensors for a model that is being changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from toolkit.conversion.flatbuffer import Model, Operator, Subgraph
from toolkit.conversion.tflite_internals import schema


def new_operator(model: Model, builtin: int, inputs: list[int], outputs: list[int]) -> Operator:
    """An operator that is not yet among those of a subgraph."""
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


def add_constant(model: Model, subgraph: Subgraph, value: Any, kind: int) -> int:
    """Adds a tensor of these numbers; returns its index."""
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(np.asarray(value).tobytes(), np.uint8)
    model.buffers.append(buffer)
    return add_tensor(subgraph, np.shape(value), kind, len(model.buffers) - 1)


def add_tensor(subgraph: Subgraph, shape: Sequence[int], kind: int, buffer: int = 0) -> int:
    """Adds a tensor, without a buffer one that is computed; returns its index."""
    tensor = schema.TensorT()
    tensor.shape = np.array(shape, np.int32)
    tensor.type = kind
    tensor.buffer = buffer
    subgraph.tensors.append(tensor)
    return len(subgraph.tensors) - 1
