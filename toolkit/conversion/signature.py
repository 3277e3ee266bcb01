"""What can be converted: functions over one set of variables, and what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

Tensors = dict[str, tf.Tensor]
Function = Callable[..., Tensors]


@dataclass(frozen=True, eq=False)
class Signature:
    """A function over a module's variables, and the specification of its inputs by name."""

    function: Function
    inputs: Mapping[str, tf.TensorSpec]


class Convertible(Protocol):
    """A `tf.Module` that names its signatures."""

    def signatures(self) -> Mapping[str, Signature]: ...
