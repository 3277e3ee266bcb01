"""The default options of studies: the paper's for CIFAR-10 and Atari, short ones for others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SupervisedPreset:
    """Defaults of one supervised task."""

    weak_fractions: tuple[float, ...]
    rounds: int
    seeds: int
    examples_per_round: int  # of each device


SUPERVISED = {
    "cifar10": SupervisedPreset((0.05, 0.1, 0.2, 0.3, 0.4, 0.5), 4_000, 5, 2_000),
    "digits": SupervisedPreset((0.05, 0.2, 0.5), 15, 3, 640),
    "npz": SupervisedPreset((0.05, 0.1, 0.2, 0.3, 0.4, 0.5), 200, 3, 2_000),
}
# Of `toolkit compare`: minutes on two cores for networks of some thousand parameters.
COMPARED_ROUNDS, COMPARED_SEEDS = 20, 5
CURVE_POINTS = 20  # of a test curve, unless the user chooses another interval


@dataclass(frozen=True, kw_only=True)
class PlayerPreset:
    """Defaults of one task of players; lengths are in steps of a game."""

    game: str
    steps: int  # of the powerful device, including the warm-up
    sync_every: int
    warm_up: int
    exploration: int
    replay: tuple[int, int]  # capacity beside a lightweight and a complex branch
    test_steps: int  # maximum length of a test episode
    seeds: int
    engine: str
    learning_rate: float | None = None  # None: the branch's own


WEAK_RATES = (1.0, 0.5, 0.25)
PLAYERS = {
    "atari": PlayerPreset(  # the paper's values
        game="breakout",
        steps=10_000_000,
        sync_every=10_000,
        warm_up=50_000,
        exploration=1_000_000,
        replay=(100_000, 1_000_000),
        test_steps=4_500,
        seeds=5,
        engine="tf",  # faster on large branches; on small ones its calls take too long
    ),
    "minatar": PlayerPreset(  # takes minutes on two cores
        game="breakout",
        steps=100_000,
        sync_every=1_000,
        warm_up=2_000,
        exploration=40_000,
        replay=(10_000, 100_000),
        test_steps=1_000,
        seeds=3,
        engine="tflite",
        learning_rate=0.001,
    ),
    "cartpole": PlayerPreset(  # takes a minute on two cores
        game="cartpole",
        steps=40_000,
        sync_every=500,
        warm_up=500,
        exploration=20_000,
        replay=(10_000, 40_000),
        test_steps=500,
        seeds=3,
        engine="tflite",
    ),
}
