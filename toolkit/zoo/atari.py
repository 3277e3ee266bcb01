"""Double-DQN networks for Atari (paper, appendix B.1): 84×84, four stacked grey frames."""

from __future__ import annotations

import keras
from keras import layers

from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ
from toolkit.branch.optimizers import Adam
from toolkit.zoo.pair import topologies

ACTIONS = 6  # of BeamRider's, Breakout's and SpaceInvaders' action sets, the largest
STEM = ("stem_conv1", "stem_conv2")


def lightweight() -> Branch:
    return _branch("atari-lightweight", filters=8, hidden=64)


def complex_() -> Branch:
    return _branch("atari-complex", filters=64, hidden=512)


def _branch(name: str, *, filters: int, hidden: int) -> Branch:
    model = keras.Sequential(
        [
            keras.Input((84, 84, 4)),
            layers.Conv2D(32, 8, strides=4, activation="relu", name=STEM[0]),
            layers.Conv2D(64, 4, strides=2, activation="relu", name=STEM[1]),
            layers.Conv2D(filters, 3, activation="relu", name="conv3"),
            layers.Flatten(name="flatten"),
            layers.Dense(hidden, activation="relu", name="hidden"),
            layers.Dense(ACTIONS, name="q_values"),
        ],
        name=name.replace("-", "_"),
    )
    return Branch(
        name=name,
        model=model,
        shared_layers=STEM,
        learning=DoubleQ(optimizer=Adam(learning_rate=0.00025)),
        input_dtype="uint8",
        input_scale=1 / 255,
    )


BRANCHES = topologies(lightweight, complex_)
