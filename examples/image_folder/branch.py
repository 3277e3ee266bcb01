"""A small network for colour pictures of 16 × 16 pixels; set CLASSES to the number of folders."""

import keras
from keras import layers

from toolkit.branch import Branch

SIZE, CLASSES = 16, 10


def branch() -> Branch:
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="stem_conv1"),
            layers.Conv2D(32, 3, activation="relu", name="stem_conv2"),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(CLASSES),
        ]
    )
    shared = ("stem_conv1", "stem_conv2")
    return Branch("pictures", model, shared, input_dtype="uint8", input_scale=1 / 255)
