"""A small pair for scikit-learn's 8×8 digits: real images that train in seconds."""

from __future__ import annotations

import keras
from keras import layers

from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import Adam
from toolkit.zoo.pair import Pair

STEM = ("stem_conv1", "stem_conv2")


def stem(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(16, 3, padding="same", activation="relu", name=STEM[0])(x)
    x = layers.Conv2D(16, 3, activation="relu", name=STEM[1])(x)
    return layers.MaxPooling2D(2, name="stem_pool")(x)


def light_features(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Flatten(name="light_flatten")(x)


def complex_features(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv3")(x)
    x = layers.Dense(128, activation="relu", name="hidden")(layers.Flatten(name="flatten")(x))
    return layers.Dropout(0.25, name="dropout")(x)


BRANCHES = Pair(
    name="digits",
    input_shape=(8, 8, 1),
    classes=10,
    stem_layers=STEM,
    stem=stem,
    light_features=light_features,
    complex_features=complex_features,
    learning=Supervised("cross_entropy", Adam(learning_rate=0.001)),
    input_scale=1 / 16,
).branches()
