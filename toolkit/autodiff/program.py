"""A network as a plain list of operations, independent of TensorFlow's graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Operations whose result has no slope, or is said to have none.
FLAT = frozenset({"StopGradient", "Floor", "Ceil", "Round", "Sign"})


@dataclass(frozen=True)
class Value:
    """The result of an operation, a parameter, a constant or the input."""

    id: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: TensorFlow's name for it, and the Keras layer it belongs to."""

    op: str
    layer: str
    inputs: tuple[Value, ...]
    output: Value
    attrs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Program:
    """y = f(x; parameters), with the new values of the parameters that training moves aside.

    `parameters` holds everything the model stores, by Keras path. `updates` names those that a
    forward pass in training mode replaces (moving statistics of batch normalisation).
    """

    x: Value
    y: Value
    parameters: Mapping[str, Value]
    updates: Mapping[str, Value]
    constants: Mapping[Value, npt.NDArray[Any]]
    nodes: tuple[Node, ...]
    early: Value | None = None  # the result of a layer inside, where a second loss is taken

    def producer(self, value: Value) -> Node | None:
        """The node that computes `value`; None for inputs, parameters and constants."""
        return next((node for node in self.nodes if node.output == value), None)

    def fed_to(self, op: str) -> Value:
        """What a closing operation of this kind is fed, or the output itself."""
        last = self.producer(self.y)
        return last.inputs[0] if last is not None and last.op == op else self.y

    def logits(self) -> Value:
        """What a closing softmax is fed, or the output itself: cross-entropy starts from here.

        Positions may be reshaped after the softmax, as long as the classes stay together.
        """
        last = self.producer(self.y)
        if (
            last is not None
            and last.op == "Reshape"
            and last.inputs[0].shape[-1:] == self.y.shape[-1:]
        ):
            last = self.producer(last.inputs[0])
        return last.inputs[0] if last is not None and last.op == "Softmax" else self.y

    def active(self, names: frozenset[str]) -> frozenset[Value]:
        """Every value that depends smoothly on one of the named parameters: no comparisons."""
        seen = {self.parameters[name] for name in names}
        for node in self.nodes:
            smooth = node.op not in FLAT and node.output.dtype == "float32"
            if smooth and not seen.isdisjoint(node.inputs):
                seen.add(node.output)
        return frozenset(seen)

    def constant(self, value: Value) -> npt.NDArray[Any]:
        return np.asarray(self.constants[value])
