"""Matrix products."""

from __future__ import annotations

import itertools

import tensorflow as tf

from toolkit.autodiff.blocks import MATMUL
from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import (
    Pullback,
    Pullbacks,
    Rule,
    concatenated,
    product,
    shape_of,
    sum_of,
)

Result = tuple[tf.Tensor, Pullbacks]


def matmul(_: Node, a: tf.Tensor, b: tf.Tensor) -> Result:
    """y = a·b: da = dy·bᵀ, db = aᵀ·dy; transposed and broadcast factors are expanded."""

    def left_gradient(dy: tf.Tensor) -> tf.Tensor:
        """(b·dyᵀ)ᵀ: the large factor stays as it is, and the small ones are transposed."""
        return _transposed(product(b, _transposed(dy)))

    return product(a, b), (left_gradient, lambda dy: product(a, dy, transpose_a=True))


def block_matmul(_: Node, x: tf.Tensor, *blocks: tf.Tensor) -> Result:
    """y = Σ_i x_i·w_i, each w_i transposed and in a batch of one; see blocks.py."""
    n, inputs = shape_of(x)
    wide, tall = tf.reshape(x, [1, n, inputs]), tf.reshape(tf.transpose(x), [1, inputs, n])
    sizes = [shape_of(w)[-1] for w in blocks]
    starts = itertools.accumulate(sizes[:-1], initial=0)
    places = list(zip(starts, sizes, strict=True))
    columns = (tf.slice(tall, [0, start, 0], [1, size, n]) for start, size in places)
    y = sum_of(product(w, some) for w, some in zip(blocks, columns, strict=True))

    def input_gradient(dy: tf.Tensor) -> tf.Tensor:
        dy = tf.reshape(dy, [1, *dy.shape])
        return tf.reshape(concatenated([product(dy, w) for w in blocks], -1), [n, inputs])

    def block_gradient(start: int, size: int) -> Pullback:
        some = tf.slice(wide, [0, 0, start], [1, n, size])
        return lambda dy: product(tf.reshape(dy, [1, *dy.shape]), some, transpose_a=True)

    y = tf.reshape(_transposed(y), [n, -1])
    return y, (input_gradient, *(block_gradient(*place) for place in places))


def _transposed(x: tf.Tensor) -> tf.Tensor:
    rank = len(x.shape)
    return tf.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


RULES: dict[str, Rule] = {"MatMul": matmul, "BatchMatMulV2": matmul, MATMUL: block_matmul}
