"""Functions of single numbers."""

from __future__ import annotations

import functools
import operator
from typing import Any

import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, one

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _selu(x: tf.Tensor) -> tf.Tensor:
    """scale·x above zero, scale·α·(eˣ - 1) below."""
    return _SELU_SCALE * (tf.nn.relu(x) + _SELU_ALPHA * tf.nn.elu(tf.minimum(x, 0.0)))


def _divide_no_nan(a: Any, b: Any) -> tf.Tensor:
    """a / b, and 0 where b is 0; there the divisor is taken as 1, so that no gradient is NaN."""
    zero = tf.equal(b, 0.0)
    return tf.where(zero, 0.0, a / tf.where(zero, 1.0, b))


def _sum(_: Call, *inputs: Any) -> list[tf.Tensor]:
    return [functools.reduce(operator.add, inputs)]


def _power(call: Call, base: Any, exponent: Any) -> list[tf.Tensor] | None:
    """aᵇ for a constant a > 0: e^(b·ln a). A constant exponent is a basic operation."""
    if isinstance(exponent, tf.Tensor) and not isinstance(base, tf.Tensor) and (base > 0).all():
        return [tf.exp(exponent * tf.math.log(base))]
    return None


def _zeros(call: Call, _: Any) -> list[tf.Tensor]:
    return [tf.zeros(call.shapes[0])]


def _ones(call: Call, _: Any) -> list[tf.Tensor]:
    return [tf.ones(call.shapes[0])]


EXPANSIONS: dict[str, Expansion] = {
    "Selu": one(_selu),
    "Softsign": one(lambda x: x / (1.0 + tf.abs(x))),
    "Expm1": one(lambda x: tf.exp(x) - 1.0),
    "Log1p": one(lambda x: tf.math.log(1.0 + x)),
    "Sinh": one(lambda x: 0.5 * (tf.exp(x) - tf.exp(-x))),
    "Cosh": one(lambda x: 0.5 * (tf.exp(x) + tf.exp(-x))),
    "Tan": one(lambda x: tf.sin(x) / tf.cos(x)),
    "Reciprocal": one(lambda x: 1.0 / x),
    "Inv": one(lambda x: 1.0 / x),
    "Pow": _power,
    "DivNoNan": one(_divide_no_nan),
    "FloorDiv": one(lambda a, b: tf.floor(a / b)),
    "FloorMod": one(lambda a, b: a - b * tf.floor(a / b)),
    "Rint": one(tf.round),
    "AddN": _sum,
    "NotEqual": one(lambda a, b: tf.logical_not(tf.equal(a, b))),
    # ∞ - ∞ and NaN - NaN are NaN, which equals nothing.
    "IsFinite": one(lambda x: tf.equal(x - x, 0.0)),
    "IsNan": one(lambda x: tf.logical_not(tf.equal(x, x))),
    "ZerosLike": _zeros,
    "OnesLike": _ones,
}
