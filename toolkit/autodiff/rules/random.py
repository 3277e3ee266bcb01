"""Random numbers: the device's own stream, RANDOM_UNIFORM and RANDOM_STANDARD_NORMAL.

Keras draws from seeded stateless generators, which TFLite does not have. A seed per draw keeps
the streams of two layers apart and makes them the same in every runtime; the device writes the
number of its own stream over the second seed.
"""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf

from firmware_sim.training.random_streams import MARK
from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import NO_GRADIENT, Pullbacks, Rule

Result = tuple[tf.Tensor, Pullbacks]


def uniform(node: Node, shape: Any) -> Result:
    return tf.raw_ops.RandomUniform(
        shape=tf.constant(shape, tf.int32), dtype=tf.float32, seed=_seed(node), seed2=MARK
    ), NO_GRADIENT


def normal(node: Node, shape: Any) -> Result:
    return tf.raw_ops.RandomStandardNormal(
        shape=tf.constant(shape, tf.int32), dtype=tf.float32, seed=_seed(node), seed2=MARK
    ), NO_GRADIENT


def _seed(node: Node) -> int:
    """Its own for every draw, also of a layer that is used twice."""
    return zlib.crc32(f"{node.layer} {node.output.id}".encode()) & 0x7FFFFFFF


RULES: dict[str, Rule] = {
    "StatelessRandomUniformV2": uniform,
    "StatelessRandomNormalV2": normal,
}
