"""What a study is when the user says nothing: the paper's for CIFAR-10, a short one for digits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Defaults of one task."""

    weak_fractions: tuple[float, ...]
    rounds: int
    seeds: int
    examples_per_round: int  # of each device


PRESETS = {
    "cifar10": Preset((0.05, 0.1, 0.2, 0.3, 0.4, 0.5), 4_000, 5, 2_000),
    "digits": Preset((0.05, 0.2, 0.5), 15, 3, 640),
    "npz": Preset((0.05, 0.1, 0.2, 0.3, 0.4, 0.5), 200, 3, 2_000),
}
CURVE_POINTS = 20  # of a test curve, if the user does not say how often to test
