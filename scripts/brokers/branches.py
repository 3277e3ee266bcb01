"""A weak and a powerful branch whose stem does not fit into a packet of 120 kB."""

import keras

from toolkit.branch.branch import Branch

STEM = 640  # units: 64 · 640 weights and 640 biases are 166 kB


def weak() -> Branch:
    return _branch("weak", keras.layers.Dense(10, name="weak_output"))


def powerful() -> Branch:
    hidden = keras.layers.Dense(32, activation="relu", name="powerful_hidden")
    return _branch("powerful", hidden, keras.layers.Dense(10, name="powerful_output"))


def _branch(name: str, *own: keras.layers.Layer) -> Branch:
    stem = keras.layers.Dense(STEM, activation="relu", name="stem")
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), stem, *own])
    return Branch(name, model, ("stem",), input_dtype="uint8", input_scale=1 / 16)
