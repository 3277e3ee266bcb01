"""All layers of a model are found, at any depth: a private method of Keras must keep doing that."""

from typing import Any

import keras
from keras import layers

from toolkit.autodiff.nested_layers import nested_layers


class Twice(layers.Layer):  # type: ignore[misc]
    """A layer of a user's own class, which keeps a sublayer in an attribute."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = layers.Dense(3, name="inner")

    def call(self, x: Any) -> Any:
        return self.inner(self.inner(x))


def test_layers_inside_models_and_layers_are_found_without_the_model_itself() -> None:
    assert hasattr(keras.Model, "_flatten_layers"), "Keras has changed; mend nested_layers"
    block = keras.Sequential([keras.Input((3,)), layers.Dense(3, name="deep")], name="block")
    model = keras.Sequential([keras.Input((3,)), block, Twice(name="twice")], name="whole")
    names = {layer.name for layer in nested_layers(model)}
    assert {"block", "deep", "twice", "inner"} <= names
    assert "whole" not in names
    assert [layer.name for layer in nested_layers(model.get_layer("twice"))] == ["inner"]
