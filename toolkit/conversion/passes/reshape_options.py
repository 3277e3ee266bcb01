"""Writes the target of a reshape as its option: the vector is in the file already, as a shape."""

from __future__ import annotations

from toolkit.conversion.flatbuffer import Model, operation
from toolkit.conversion.tflite_internals import schema


def reshape_options(model: Model) -> None:
    """Removes the constant that holds the target of each reshape."""
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            shape = subgraph.tensors[operator.outputs[0]].shape if len(operator.outputs) else None
            if operation(model, operator) != "RESHAPE" or shape is None or not len(shape):
                continue
            operator.inputs = operator.inputs[:1]
            operator.builtinOptions = schema.ReshapeOptionsT()
            operator.builtinOptions.newShape = shape
            operator.builtinOptionsType = schema.BuiltinOptions.ReshapeOptions
