"""A small autoencoder of windows of vibration: 768 numbers through 24, and back."""

import keras
from keras import layers

from toolkit.branch import Adam, Branch, Supervised


def autoencoder() -> Branch:
    model = keras.Sequential(
        [
            keras.Input((128, 6)),
            layers.Conv1D(12, 9, strides=4, padding="same", activation="relu", name="stem"),
            layers.Flatten(),
            layers.Dense(24, activation="relu"),
            layers.Dense(128 * 6),
            layers.Reshape((128, 6)),
        ]
    )
    learning = Supervised("mse", Adam(learning_rate=3e-3), target="input")
    return Branch("autoencoder", model, ("stem",), learning, input_dtype="float32")
