"""Large dense kernels in blocks.

A runtime copies a variable when it is assigned, and an optimiser passes over it ten times: cheap
while a cache holds it, and dear for the 6.4 MB of Atari's complex branch, all of whose intermediate
results are as large. So a large kernel W [in, out] is kept as variables of some input rows each:

    y = Σ_i x_i·W_i        dx_i = dy·W_iᵀ        dW_i = x_iᵀ·dy

They are transposed, so that each is the left factor of a product in y, which XNNPACK takes as it
is; right ones it packs anew for every product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import tensorflow as tf

from toolkit.autodiff.program import Node, Program, Value

LARGE = 2**16  # elements of a tensor that is not moved without need
MATMUL = "BlockMatMul"
_BLOCK = 2**18  # elements, about: smaller ones are no faster, and every one makes the file larger
_ALIGNED = 32  # rows: the number that kernels take at once


@dataclass(frozen=True)
class Blocks:
    """How one kernel [in, out] is kept: as [1, out, some of the inputs], in order."""

    name: str
    shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}/{i}" for i in range(self._count))

    @property
    def rows(self) -> list[tuple[int, int]]:
        """The first row and the number of rows of each block."""
        total, count = self.shape[0], self._count
        inner = (total * i // count // _ALIGNED * _ALIGNED for i in range(1, count))
        return [(start, end - start) for start, end in pairwise([0, *inner, total])]

    @property
    def _count(self) -> int:
        rows, columns = self.shape
        return max(1, min(-(-rows * columns // _BLOCK), rows // _ALIGNED))

    def values(self, first: int, dtype: str) -> tuple[Value, ...]:
        """What stands for the blocks in a program, numbered from `first`."""
        shapes = ((1, self.shape[1], size) for _, size in self.rows)
        return tuple(Value(first + i, shape, dtype) for i, shape in enumerate(shapes))

    def cut(self, kernel: Any) -> dict[str, tf.Tensor]:
        parts = (tf.slice(kernel, [start, 0], [size, -1]) for start, size in self.rows)
        return {
            name: tf.transpose(part)[tf.newaxis]
            for name, part in zip(self.names, parts, strict=True)
        }

    def join(self, blocks: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The inverse of `cut`."""
        parts = [tf.transpose(tf.reshape(blocks[n], blocks[n].shape[1:])) for n in self.names]
        return tf.concat(parts, 0)


def large_kernels(program: Program) -> dict[str, Blocks]:
    """The kernels of more than one block that are read by products only, by name."""
    kernels = {n: Blocks(n, v.shape) for n, v in program.parameters.items() if len(v.shape) == 2}
    return {
        name: kernel
        for name, kernel in kernels.items()
        if len(kernel.names) > 1 and _is_kernel(program, program.parameters[name])
    }


def in_blocks(program: Program, kernels: Iterable[Blocks]) -> Program:
    """The program with these parameters replaced by their blocks."""
    parameters = dict(program.parameters)
    replaced: dict[Value, tuple[Value, ...]] = {}
    free = 1 + max(value.id for node in program.nodes for value in (*node.inputs, node.output))
    for kernel in kernels:
        whole = parameters.pop(kernel.name)
        replaced[whole] = kernel.values(free, whole.dtype)
        free += len(kernel.names)
        parameters |= dict(zip(kernel.names, replaced[whole], strict=True))

    def multiplied(node: Node) -> Node:
        blocks = replaced.get(node.inputs[-1]) if node.op == "MatMul" else None
        return replace(node, op=MATMUL, inputs=(node.inputs[0], *blocks)) if blocks else node

    return replace(program, parameters=parameters, nodes=tuple(map(multiplied, program.nodes)))


def _is_kernel(program: Program, value: Value) -> bool:
    """Whether the value is read by products x·value only."""
    users = [node for node in program.nodes if value in node.inputs]
    return bool(users) and all(
        node.op == "MatMul"
        and not (node.attrs.get("transpose_a") or node.attrs.get("transpose_b"))
        and node.inputs[0] != value
        for node in users
    )
