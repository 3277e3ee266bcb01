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
    return product(a, b), (
        lambda dy: product(dy, b, transpose_b=True),
        lambda dy: product(a, dy, transpose_a=True),
    )


RULES: dict[str, Rule] = {"MatMul": matmul, "BatchMatMulV2": matmul}
