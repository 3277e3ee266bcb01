"""What the normal device trains: softmax regression on pictures of 8 × 8 pixels, all shared."""

import keras
from keras import layers

from toolkit.branch import Branch


def branch() -> Branch:
    scores = layers.Dense(10, name="softmax")
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), scores])
    return Branch("digits-softmax", model, ("softmax",), input_dtype="uint8", input_scale=1 / 16)
