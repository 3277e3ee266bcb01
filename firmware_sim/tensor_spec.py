"""Arrays, and what an array must be: the types that every room of a device uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """Shape and type of one array, such as an input of a signature or an observation."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        """As messages show it: uint8[8, 8, 1]."""
        return f"{self.dtype}{list(self.shape)}"

    @property
    def of_one(self) -> TensorSpec:
        """One example of a batch."""
        return TensorSpec(self.shape[1:], self.dtype)
