"""Stored zeros that a variable starts from become an operation that makes them.

The converter stores every zero of the optimiser's slots.
"""

from __future__ import annotations

import numpy as np

from toolkit.conversion.building import add_constant, new_operator
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
            add_constant(model, subgraph, shape, schema.TensorType.INT32),
            add_constant(model, subgraph, np.float32(0.0), schema.TensorType.FLOAT32),
        ]
        tensor.buffer = 0  # no data
        made.append(new_operator(model, schema.BuiltinOperator.FILL, inputs, [constant]))
    subgraph.operators = made + list(subgraph.operators)
