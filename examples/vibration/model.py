"""A weak and a strong network that tell four states of a machine from its vibration."""

import keras
from keras import layers


def stem() -> list[keras.Layer]:
    """What both networks begin with; the same names and options make it common."""
    return [
        keras.Input((128, 6)),
        layers.Conv1D(16, 7, strides=2, activation="relu", name="stem_conv1"),
        layers.Conv1D(16, 5, strides=2, activation="relu", name="stem_conv2"),
    ]


def weak() -> keras.Model:
    return keras.Sequential([*stem(), layers.GlobalMaxPooling1D(), layers.Dense(4)])


def strong() -> keras.Model:
    own = [
        layers.Conv1D(32, 3, activation="relu"),
        layers.GlobalMaxPooling1D(),
        layers.Dense(64, activation="relu"),
        layers.Dropout(0.2),
        layers.Dense(4),
    ]
    return keras.Sequential([*stem(), *own])
