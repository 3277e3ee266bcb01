"""What a branch learns to answer for an example."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from firmware_sim.tensor_spec import TensorSpec

Kind = Literal["class", "numbers", "input", "class_per_position"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Target:
    """The target of one example.

    class               a whole number from 0 to classes - 1
    numbers             one or many
    input               the example itself as the model sees it, x · scale: nobody states a y
    class_per_position  a class for each position, or -1 where none counts
    """

    kind: Kind
    shape: tuple[int, ...] = ()  # of one example's target
    classes: int = 0  # 0: it is no class, or a bundle of an earlier version does not say
    scale: float = 1.0  # of the input

    @property
    def is_class(self) -> bool:
        return self.kind in ("class", "class_per_position")

    @property
    def positions(self) -> int:
        """The number of answers to one example."""
        return math.prod(self.shape)

    @property
    def y(self) -> TensorSpec | None:
        """One example's y as a device stores it and `train` takes it; None: it takes none."""
        if self.kind == "input":
            return None
        return TensorSpec(self.shape, np.dtype(np.int32 if self.is_class else np.float32))


A_CLASS = Target("class")  # of any number of classes
