"""How a branch learns: the objective and its optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from firmware_sim.bundle.target import Kind
from toolkit.branch.optimizers import Adam, Optimizer
from toolkit.errors import ModelError

LossName = Literal["cross_entropy", "binary_cross_entropy", "mse", "mae", "huber"]


@dataclass(frozen=True)
class Supervised:
    """Examples: cross-entropy over classes, or a loss of numbers.

    Binary cross-entropy is one of numbers: each is 0 or 1, or a probability between.

    Without a `target` it follows from the loss: a class for each example, or for each position if
    the network answers for many; otherwise numbers. `input` makes an autoencoder.
    """

    # The merge that fits (`--merge` of the aggregator): the gradient over the data of all devices.
    merge: ClassVar[str] = "samples"

    loss: LossName = "cross_entropy"
    optimizer: Optimizer = field(default_factory=Adam)
    target: Kind | None = None
    label_smoothing: float = 0.0  # of both cross-entropies
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        by_class = self.loss == "cross_entropy"
        if self.target is not None and by_class != (self.target in ("class", "class_per_position")):
            fitting = "mse, mae or huber" if by_class else "cross_entropy"
            raise ModelError(
                f"the loss {self.loss} does not fit the target {self.target!r}; take {fitting}."
            )


@dataclass(frozen=True)
class DoubleQ:
    """Double deep Q-learning on transitions (obs, action, reward, next_obs, done)."""

    # The paper averages players plainly: the length of a replay says nothing about its worth.
    merge: ClassVar[str] = "mean"

    discount: float = 0.99
    huber_delta: float = 1.0
    optimizer: Optimizer = field(default_factory=lambda: Adam(learning_rate=0.00025))


Learning = Supervised | DoubleQ
