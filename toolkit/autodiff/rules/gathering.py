"""Rows by number: embeddings."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import Pullbacks, Rule, shape_of

Result = tuple[tf.Tensor, Pullbacks]


def gather(_: Node, table: tf.Tensor, places: tf.Tensor, axis: Any) -> Result:
    """The gradient adds every row to where it came from; SCATTER_ND adds up equal places."""
    count, *rest = shape_of(table)

    def pullback(dy: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(dy, [-1, *rest])
        return tf.scatter_nd(tf.reshape(places, [-1, 1]), rows, [count, *rest])

    return tf.gather(table, places), (pullback,)


RULES: dict[str, Rule] = {"GatherV2": gather}
