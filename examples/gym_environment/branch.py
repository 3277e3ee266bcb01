"""A network that plays Garden: one output for each move, learnt by double Q-learning."""

import keras
from keras import layers

from toolkit.branch import Adam, Branch, DoubleQ


def branch() -> Branch:
    model = keras.Sequential(
        [
            keras.Input((4,)),  # the offsets (down, right) of plant and pond
            layers.Dense(64, activation="relu", name="stem"),
            layers.Dense(64, activation="relu", name="hidden"),
            layers.Dense(4, name="q_values"),  # one for each move
        ]
    )
    learning = DoubleQ(discount=0.9, optimizer=Adam(learning_rate=0.001))
    return Branch("garden", model, ("stem",), learning)
