"""Which Keras layer an operation of a traced graph belongs to."""

from __future__ import annotations

import keras
import tensorflow as tf

from toolkit.autodiff.nested_layers import nested_layers


class Scopes:
    """The layers of one model, found by the scopes in the names of operations."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._inside: dict[int, dict[str, keras.Layer]] = {}  # by the id of the outer layer

    def layer(self, op: tf.Operation) -> str:
        """The innermost layer in whose scope the operation is: 'net_1/conv1_3/Relu' is in conv1.

        Keras enters a layer's scope twice in each call, first to build it, and TensorFlow numbers
        the entries from the second on. So an operation in 'dense_1' belongs to the layer dense,
        also where another layer is called dense_1.
        """
        scopes: list[str] = op.name.split("/")
        name, inside = scopes[0], self._model
        for scope in scopes[:-1]:
            layers = self._layers(inside)
            entered, _, number = scope.rpartition("_")
            if number.isdigit() and entered in layers:
                name, inside = entered, layers[entered]
        return name

    def _layers(self, outer: keras.Layer) -> dict[str, keras.Layer]:
        if id(outer) not in self._inside:
            self._inside[id(outer)] = {layer.name: layer for layer in nested_layers(outer)}
        return self._inside[id(outer)]
