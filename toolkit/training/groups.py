"""Groups of trainable tensors whose gradients and optimiser slots are kept as one tensor.

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

from toolkit.autodiff.blocks import LARGE
from toolkit.autodiff.rules.rule import concatenated


@dataclass(frozen=True)
class Group:
    """Consecutive tensors, by name and shape."""

    number: int
    shared: bool
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the gradient and of each slot: that of a tensor alone, otherwise of a vector."""
        return next(iter(self.shapes.values())) if len(self.shapes) == 1 else (self.size,)

    def slot(self, kind: str) -> str:
        """The name of a tensor as large as this group."""
        return f"optimizer/{kind}/{self.number}"

    def join(self, tensors: Mapping[str, tf.Tensor]) -> tf.Tensor:
        if len(self.shapes) == 1:
            return next(tensors[name] for name in self.shapes)
        return concatenated([tf.reshape(tensors[name], [-1]) for name in self.shapes], 0)

    def cut(self, vector: tf.Tensor) -> dict[str, tf.Tensor]:
        """The inverse of `join`; SLICE, unlike SPLIT_V, is taken by XNNPACK."""
        if len(self.shapes) == 1:
            return dict.fromkeys(self.shapes, vector)
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
