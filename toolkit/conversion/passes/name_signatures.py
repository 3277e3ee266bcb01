"""Gives the inputs and outputs of each signature their true names."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.conversion.flatbuffer import Model

# Per signature: the true names of its inputs and of its outputs, by the names they have so far.
Names = Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]


def name_signatures(model: Model, names: Names) -> None:
    """Replaces the numbered names that the converter was given."""
    for signature in model.signatureDefs:
        inputs, outputs = names[signature.signatureKey.decode()]
        for tensor in signature.inputs or []:
            tensor.name = inputs[tensor.name.decode()]
        for tensor in signature.outputs or []:
            tensor.name = outputs[tensor.name.decode()]
