"""What a study is when the user says nothing: the paper's for CIFAR-10 and Atari, else short."""

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
CURVE_POINTS = 20  # of a test curve, if the user does not say how often to test


@dataclass(frozen=True, kw_only=True)
class RlPreset:
    """Defaults of one task that is played; lengths are in steps of a game."""

    game: str
    steps: int  # of the powerful device, the warm-up included
    sync_every: int
    warm_up: int
    exploration: int
    replay: tuple[int, int]  # beside a lightweight and a complex branch
    test_steps: int  # of one test episode at most
    seeds: int
    engine: str
    learning_rate: float | None = None  # None: the branch's own


WEAK_RATES = (1.0, 0.5, 0.25)
RL = {
    "atari": RlPreset(  # the paper's
        game="breakout",
        steps=10_000_000,
        sync_every=10_000,
        warm_up=50_000,
        exploration=1_000_000,
        replay=(100_000, 1_000_000),
        test_steps=4_500,
        seeds=5,
        engine="tf",  # faster on branches of this size; on small ones its calls take too long
    ),
    "minatar": RlPreset(  # two cores learn it in minutes
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
    "cartpole": RlPreset(  # and this in a minute
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
