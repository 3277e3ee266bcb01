"""A small dense pair for CartPole, which is learnt in a minute."""

from __future__ import annotations

import keras
from keras import layers

from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ
from toolkit.branch.optimizers import Adam
from toolkit.zoo.pair import topologies

ACTIONS = 2
STEM = ("stem",)


def lightweight() -> Branch:
    return _branch("cartpole-lightweight", hidden=8)


def complex_() -> Branch:
    return _branch("cartpole-complex", hidden=128)


def _branch(name: str, *, hidden: int) -> Branch:
    model = keras.Sequential(
        [
            keras.Input((4,)),  # position and speed of the cart, angle and speed of the pole
            layers.Dense(64, activation="relu", name=STEM[0]),
            layers.Dense(hidden, activation="relu", name="hidden"),
            layers.Dense(ACTIONS, name="q_values"),
        ],
        name=name.replace("-", "_"),
    )
    return Branch(
        name=name,
        model=model,
        shared_layers=STEM,
        # Q grows to 1/(1-γ) = 100, a point for every step: with δ = 1 it would take long.
        learning=DoubleQ(huber_delta=100.0, optimizer=Adam(learning_rate=0.0001)),
    )


BRANCHES = topologies(lightweight, complex_)
