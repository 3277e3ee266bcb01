"""Small convolutional pairs for MinAtar's games: 10×10, one plane of 0 and 1 per kind of object.

The complex branch is the network that MinAtar's authors published: a convolution with 16 filters
and 128 hidden units. The lightweight one has a tenth of its parameters.
"""

from __future__ import annotations

import keras
from keras import layers

from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ
from toolkit.branch.optimizers import Adam
from toolkit.errors import ModelError
from toolkit.zoo.pair import Build, topologies

ACTIONS = 6  # of every game
PLANES = {"asterix": 4, "breakout": 4, "freeway": 7, "seaquest": 10, "space_invaders": 6}
STEM = ("stem_conv",)


def branches(game: str) -> dict[tuple[str, str], Build]:
    """How to build each branch of a game, by topology and branch."""
    if game not in PLANES:
        raise ModelError(f"there is no MinAtar game {game!r}; there are {', '.join(PLANES)}.")
    return topologies(
        lambda: _branch(game, "lightweight", hidden=12),
        lambda: _branch(game, "complex", hidden=128),
    )


def _branch(game: str, kind: str, *, hidden: int) -> Branch:
    model = keras.Sequential(
        [
            keras.Input((10, 10, PLANES[game])),
            layers.Conv2D(16, 3, activation="relu", name=STEM[0]),
            layers.Flatten(name="flatten"),
            layers.Dense(hidden, activation="relu", name="hidden"),
            layers.Dense(ACTIONS, name="q_values"),
        ],
        name=f"minatar_{game}_{kind}",
    )
    return Branch(
        name=f"minatar-{kind}-{game.replace('_', '-')}",
        model=model,
        shared_layers=STEM,
        learning=DoubleQ(optimizer=Adam(learning_rate=0.00025)),
        input_dtype="uint8",
    )
