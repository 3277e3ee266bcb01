"""CIFAR-10 networks (paper, appendix B.2), share-first and cascading."""

from __future__ import annotations

import keras
from keras import layers

from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import RMSProp
from toolkit.zoo.pair import Pair

STEM = ("stem_conv1", "stem_conv2")


def stem(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name=STEM[0])(x)
    x = layers.Conv2D(32, 3, activation="relu", name=STEM[1])(x)
    x = layers.MaxPooling2D(2, name="stem_pool")(x)
    return layers.Dropout(0.25, name="stem_dropout")(x)


def light_features(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.MaxPooling2D(2, name="light_pool")(x)
    x = layers.Dropout(0.5, name="light_dropout")(x)
    return layers.Flatten(name="light_flatten")(x)


def complex_features(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(64, 3, padding="same", activation="relu", name="conv3")(x)
    x = layers.Conv2D(64, 3, activation="relu", name="conv4")(x)
    x = layers.MaxPooling2D(2, name="pool")(x)
    x = layers.Dropout(0.25, name="dropout1")(x)
    x = layers.Dense(512, activation="relu", name="hidden")(layers.Flatten(name="flatten")(x))
    return layers.Dropout(0.25, name="dropout2")(x)


BRANCHES = Pair(
    name="cifar10",
    input_shape=(32, 32, 3),
    classes=10,
    stem_layers=STEM,
    stem=stem,
    light_features=light_features,
    complex_features=complex_features,
    learning=Supervised("cross_entropy", RMSProp(learning_rate=0.0001, decay=1e-6)),
    input_scale=1 / 255,
).branches()
