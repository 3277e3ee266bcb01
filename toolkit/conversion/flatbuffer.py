"""Reads TFLite's flatbuffers: a model as plain objects, its operations and its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolkit.conversion.tflite_internals import schema

Model = Any  # schema.ModelT, generated and untyped
Subgraph = Any
Operator = Any

OPERATIONS: dict[int, str] = {
    code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)
}
# Bytes of one element; all other types that we use take four.
_WIDTHS = {schema.TensorType.UINT8: 1, schema.TensorType.INT8: 1, schema.TensorType.BOOL: 1}


def parse(data: bytes) -> Model:
    """The model; its options hold plain values and no arrays, so that they can be compared."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            options = operator.builtinOptions
            if isinstance(options, schema.ReshapeOptionsT) and options.newShape is not None:
                options.newShape = tuple(map(int, options.newShape))
    return model


def operation(model: Model, operator: Operator) -> str:
    """The builtin operation's name, or a custom operation's own."""
    code = model.operatorCodes[operator.opcodeIndex]
    if code.customCode is not None:
        return str(code.customCode.decode())
    return OPERATIONS[max(code.builtinCode, code.deprecatedBuiltinCode)]


def tensor_bytes(model: Model, tensor: Any) -> int:
    """Bytes that a tensor takes while it is alive; constants stay in the file and take none."""
    data = model.buffers[tensor.buffer].data
    if data is not None and len(data):
        return 0
    shape = () if tensor.shape is None else tensor.shape
    return int(np.prod(shape, dtype=np.int64)) * _WIDTHS.get(tensor.type, 4)


def content(item: Any) -> Any:
    """A value that is equal for two parts of a model if they are the same at every depth."""
    if isinstance(item, np.ndarray):
        return item.dtype.str, item.tobytes()
    if hasattr(item, "__dict__"):
        return type(item).__name__, *((k, content(v)) for k, v in sorted(vars(item).items()))
    return item
