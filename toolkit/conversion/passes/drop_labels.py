"""Leaves out names, empty records and metadata that no runtime reads."""

from __future__ import annotations

from toolkit.conversion.flatbuffer import Model


def drop_labels(model: Model) -> None:
    """Removes what describes the model and does not change what it computes."""
    model.description = model.metadata = model.metadataBuffer = None
    for buffer in model.buffers:
        if buffer.data is not None and len(buffer.data) == 0:
            buffer.data = None
    for subgraph in model.subgraphs:
        subgraph.name = None
        for tensor in subgraph.tensors:
            tensor.name = None
            tensor.hasRank = False  # all shapes are known
            quantization = tensor.quantization
            if quantization is not None and quantization.scale is None:
                tensor.quantization = None
        for operator in subgraph.operators:
            if operator.builtinOptions is not None and not vars(operator.builtinOptions):
                operator.builtinOptions, operator.builtinOptionsType = None, 0
