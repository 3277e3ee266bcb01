"""The layers of a Keras model, those inside nested models and layers included, and their results.

Keras has no public way to either; its private attributes are used here and nowhere else.
"""

from __future__ import annotations

from typing import Any

import keras


def nested_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Every layer inside `layer`, at any depth, without itself.

    `model.layers` ends at the first level, and a layer of a user's own class keeps its sublayers in
    attributes.
    """
    return list(layer._flatten_layers(include_self=False))


def producer(tensor: keras.KerasTensor) -> Any:
    """The layer or the operation that computes a symbolic tensor."""
    return tensor._keras_history.operation


def output_of(model: keras.Model, name: str) -> keras.KerasTensor | None:
    """What the layer or the operation of this name returns in the model, at its last call.

    `layer.output` is something else for a nested model: the tensor inside it.
    """
    for operation in getattr(model, "operations", model.layers):
        if operation.name == name:
            return operation._inbound_nodes[-1].outputs[0]
    return None
