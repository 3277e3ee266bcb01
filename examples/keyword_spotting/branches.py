"""A pair of Conv1D networks for keyword spotting; their first two layers are shared."""

import keras
from keras import layers

STEM = ("stem_conv1", "stem_conv2")


def stem() -> list[keras.Layer]:
    return [
        keras.Input((512, 1)),
        layers.Conv1D(16, 32, strides=4, activation="relu", name=STEM[0]),
        layers.Conv1D(16, 16, strides=4, activation="relu", name=STEM[1]),
    ]


def small() -> tuple[keras.Model, tuple[str, ...]]:
    head = [layers.MaxPooling1D(4), layers.Flatten(), layers.Dense(6)]
    return keras.Sequential([*stem(), *head]), STEM


def large() -> tuple[keras.Model, tuple[str, ...]]:
    head = [
        layers.Conv1D(32, 5, padding="same", activation="relu"),
        layers.MaxPooling1D(2),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(6),
    ]
    return keras.Sequential([*stem(), *head]), STEM
