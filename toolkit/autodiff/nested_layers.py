"""The layers of a Keras model, those inside nested models and layers included."""

from __future__ import annotations

import keras


def nested_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Every layer inside `layer`, at any depth, without itself.

    Keras has no public way: `model.layers` ends at the first level, and a layer of a user's own
    class keeps its sublayers in attributes. The private method is used here and nowhere else.
    """
    return list(layer._flatten_layers(include_self=False))
