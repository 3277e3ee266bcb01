"""How a branch learns: the objective and its optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from toolkit.branch.optimizers import Adam, Optimizer

LossName = Literal["cross_entropy", "mse", "huber"]


@dataclass(frozen=True)
class Supervised:
    """Labelled examples: cross-entropy over classes, or a regression loss."""

    # The merge that fits (`--merge` of the aggregator): the gradient over the data of all devices.
    merge: ClassVar[str] = "samples"

    loss: LossName = "cross_entropy"
    optimizer: Optimizer = field(default_factory=Adam)


@dataclass(frozen=True)
class DoubleQ:
    """Double deep Q-learning on transitions (obs, action, reward, next_obs, done)."""

    # The paper averages players plainly: the length of a replay says nothing about its worth.
    merge: ClassVar[str] = "mean"

    discount: float = 0.99
    huber_delta: float = 1.0
    optimizer: Optimizer = field(default_factory=lambda: Adam(learning_rate=0.00025))


Learning = Supervised | DoubleQ
