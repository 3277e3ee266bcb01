"""Matrix products."""

from __future__ import annotations

import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import Pullbacks, Rule, product, shape_of
from toolkit.errors import UnsupportedOp

Result = tuple[tf.Tensor, Pullbacks]


def matmul(node: Node, a: tf.Tensor, b: tf.Tensor) -> Result:
    """y = a·b: da = dy·bᵀ, db = aᵀ·dy."""
    if any(node.attrs.get(key) for key in ("transpose_a", "transpose_b", "adj_x", "adj_y")):
        raise UnsupportedOp(node.layer, node.op, "a product with a transposed operand")
    if shape_of(a)[:-2] != shape_of(b)[:-2]:
        raise UnsupportedOp(node.layer, node.op, "a product that broadcasts its batches")

    def left_gradient(dy: tf.Tensor) -> tf.Tensor:
        """(b·dyᵀ)ᵀ: the large factor stays as it is, and the small ones are transposed."""
        return _transposed(product(b, _transposed(dy)))

    return product(a, b), (left_gradient, lambda dy: product(a, dy, transpose_a=True))


def _transposed(x: tf.Tensor) -> tf.Tensor:
    rank = len(x.shape)
    return tf.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


RULES: dict[str, Rule] = {"MatMul": matmul, "BatchMatMulV2": matmul}
