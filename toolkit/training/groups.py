"""Groups of trainable tensors whose gradients and optimiser slots are kept as one vector.

One vector for several small tensors keeps the exported graph small. A large tensor is a group of
its own, so that it is never copied into a vector; shared and local tensors are never together,
so that dθ_shared and dθ_local fall apart by themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

LARGE = 2**16  # elements
WIDEST = 5  # XNNPACK takes no CONCATENATION of more tensors


@dataclass(frozen=True)
class Group:
    """Consecutive tensors, by name and shape."""

    number: int
    shared: bool
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def slot(self, kind: str) -> str:
        """The name of a vector as long as this group."""
        return f"optimizer/{kind}/{self.number}"

    def join(self, tensors: Mapping[str, tf.Tensor]) -> tf.Tensor:
        flat = [tf.reshape(tensors[name], [-1]) for name in self.shapes]
        while len(flat) > 1:
            runs = [flat[i : i + WIDEST] for i in range(0, len(flat), WIDEST)]
            flat = [tf.concat(run, 0) if len(run) > 1 else run[0] for run in runs]
        return flat[0]

    def cut(self, vector: tf.Tensor) -> dict[str, tf.Tensor]:
        """The inverse of `join`; SLICE, unlike SPLIT_V, is taken by XNNPACK."""
        if len(self.shapes) == 1:
            return {name: tf.reshape(vector, shape) for name, shape in self.shapes.items()}
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        starts = itertools.accumulate(sizes, initial=0)
        return {
            name: tf.reshape(tf.slice(vector, [start], [size]), shape)
            for (name, shape), start, size in zip(self.shapes.items(), starts, sizes, strict=False)
        }


def group(
    shapes: Mapping[str, tuple[int, ...]], shared: Sequence[str], local: Sequence[str]
) -> tuple[Group, ...]:
    """All tensors, shared ones first."""
    groups: list[Group] = []
    for names, is_shared in ((shared, True), (local, False)):
        for run in _runs({name: shapes[name] for name in names}):
            groups.append(Group(len(groups), is_shared, run))
    return tuple(groups)


def _runs(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    runs: list[dict[str, tuple[int, ...]]] = []
    room = False
    for name, shape in shapes.items():
        large = math.prod(shape) >= LARGE
        if large or not room:
            runs.append({})
        runs[-1][name] = shape
        room = not large
    return runs
