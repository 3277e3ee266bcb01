"""Elementwise arithmetic with broadcasting, comparisons and selection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.rule import NO_GRADIENT, Pullbacks, Rule, unbroadcast
from toolkit.errors import UnsupportedOp

Result = tuple[tf.Tensor, Pullbacks]


def add(_: Node, a: Any, b: Any) -> Result:
    return a + b, (lambda dy: unbroadcast(dy, a), lambda dy: unbroadcast(dy, b))


def subtract(_: Node, a: Any, b: Any) -> Result:
    return a - b, (lambda dy: unbroadcast(dy, a), lambda dy: unbroadcast(-dy, b))


def multiply(_: Node, a: Any, b: Any) -> Result:
    return a * b, (lambda dy: unbroadcast(dy * b, a), lambda dy: unbroadcast(dy * a, b))


def divide(_: Node, a: Any, b: Any) -> Result:
    y = a / b
    return y, (lambda dy: unbroadcast(dy / b, a), lambda dy: unbroadcast(-dy * y / b, b))


def squared_difference(_: Node, a: Any, b: Any) -> Result:
    difference = a - b
    return difference * difference, (
        lambda dy: unbroadcast(dy * (2.0 * difference), a),
        lambda dy: unbroadcast(dy * (-2.0 * difference), b),
    )


def maximum(_: Node, a: Any, b: Any) -> Result:
    """Where both are equal the first one gets the gradient, as in TensorFlow."""
    first = tf.cast(tf.greater_equal(a, b), "float32")
    return tf.maximum(a, b), (
        lambda dy: unbroadcast(dy * first, a),
        lambda dy: unbroadcast(dy * (1.0 - first), b),
    )


def minimum(_: Node, a: Any, b: Any) -> Result:
    first = tf.cast(tf.less_equal(a, b), "float32")
    return tf.minimum(a, b), (
        lambda dy: unbroadcast(dy * first, a),
        lambda dy: unbroadcast(dy * (1.0 - first), b),
    )


def negate(_: Node, x: tf.Tensor) -> Result:
    return -x, (lambda dy: -dy,)


def square(_: Node, x: tf.Tensor) -> Result:
    return x * x, (lambda dy: dy * (2.0 * x),)


def power(node: Node, x: tf.Tensor, exponent: Any) -> Result:
    """xⁿ for a constant n: dy/dx = n·xⁿ⁻¹."""
    if not isinstance(exponent, np.ndarray) or exponent.size != 1:
        raise UnsupportedOp(node.layer, node.op, "an exponent that is not one constant number")
    n = float(exponent.item())
    return tf.pow(x, n), (lambda dy: dy * (n * tf.pow(x, n - 1.0)),)


def square_root(_: Node, x: tf.Tensor) -> Result:
    y = tf.sqrt(x)
    return y, (lambda dy: dy * 0.5 / y,)


def reciprocal_square_root(_: Node, x: tf.Tensor) -> Result:
    y = tf.math.rsqrt(x)  # dy/dx = -½ x^(-3/2)
    return y, (lambda dy: dy * (-0.5 * y * y * y),)


def exponential(_: Node, x: tf.Tensor) -> Result:
    y = tf.exp(x)
    return y, (lambda dy: dy * y,)


def logarithm(_: Node, x: tf.Tensor) -> Result:
    return tf.math.log(x), (lambda dy: dy / x,)


def absolute(_: Node, x: tf.Tensor) -> Result:
    return tf.abs(x), (lambda dy: dy * tf.sign(x),)


def sine(_: Node, x: tf.Tensor) -> Result:
    return tf.sin(x), (lambda dy: dy * tf.cos(x),)


def cosine(_: Node, x: tf.Tensor) -> Result:
    return tf.cos(x), (lambda dy: -dy * tf.sin(x),)


def step_function(node: Node, x: tf.Tensor) -> Result:
    """Its slope is zero wherever it has one."""
    return _STEPS[node.op](x), NO_GRADIENT


def error_function(_: Node, x: tf.Tensor) -> Result:
    return _erf(x), (lambda dy: dy * (2.0 / math.sqrt(math.pi)) * tf.exp(-x * x),)


def complementary_error_function(_: Node, x: tf.Tensor) -> Result:
    return 1.0 - _erf(x), (lambda dy: dy * (-2.0 / math.sqrt(math.pi)) * tf.exp(-x * x),)


def _erf(x: tf.Tensor) -> tf.Tensor:
    """erf(x) = x·P(x²)/Q(x²) on [-4, 4], to float32's last digits; TFLite has no erf.

    The coefficients are the rational minimax approximation that Eigen and XLA use.
    """
    x = tf.clip_by_value(x, -4.0, 4.0)
    squared = x * x
    return x * _polynomial(squared, _ERF_P) / _polynomial(squared, _ERF_Q)


def _polynomial(x: tf.Tensor, coefficients: tuple[float, ...]) -> tf.Tensor:
    """Horner's scheme, highest power first."""
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


_ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def cast(node: Node, x: tf.Tensor) -> Result:
    y = tf.cast(x, node.output.dtype)
    return y, (lambda dy: tf.cast(dy, x.dtype),) if x.dtype.is_floating else NO_GRADIENT


def compare(node: Node, a: Any, b: Any) -> Result:
    return _COMPARISONS[node.op](a, b), NO_GRADIENT


def combine(node: Node, *conditions: Any) -> Result:
    return _LOGIC[node.op](*conditions), NO_GRADIENT


def select(_: Node, condition: tf.Tensor, a: Any, b: Any) -> Result:
    chosen = tf.cast(condition, "float32")
    # Dropout selects between x and zero: a product, unlike SELECT_V2, is taken by XNNPACK.
    y = a * chosen if isinstance(b, np.ndarray) and not b.any() else tf.where(condition, a, b)
    return y, (
        None,
        lambda dy: unbroadcast(dy * chosen, a),
        lambda dy: unbroadcast(dy * (1.0 - chosen), b),
    )


def stop_gradient(_: Node, x: tf.Tensor) -> Result:
    return x, NO_GRADIENT


_COMPARISONS = {
    "Greater": tf.greater,
    "GreaterEqual": tf.greater_equal,
    "Less": tf.less,
    "LessEqual": tf.less_equal,
    "Equal": tf.equal,
}
_LOGIC = {
    "LogicalAnd": tf.logical_and,
    "LogicalOr": tf.logical_or,
    "LogicalNot": tf.logical_not,
}
_STEPS = {"Floor": tf.floor, "Ceil": tf.math.ceil, "Round": tf.round, "Sign": tf.sign}

RULES: dict[str, Rule] = {
    "AddV2": add,
    "BiasAdd": add,
    "Sub": subtract,
    "Mul": multiply,
    "RealDiv": divide,
    "SquaredDifference": squared_difference,
    "Maximum": maximum,
    "Minimum": minimum,
    "Neg": negate,
    "Square": square,
    "Pow": power,
    "Sqrt": square_root,
    "Rsqrt": reciprocal_square_root,
    "Exp": exponential,
    "Log": logarithm,
    "Abs": absolute,
    "Sin": sine,
    "Cos": cosine,
    "Erf": error_function,
    "Erfc": complementary_error_function,
    "Cast": cast,
    "SelectV2": select,
    "StopGradient": stop_gradient,
    **dict.fromkeys(_COMPARISONS, compare),
    **dict.fromkeys(_LOGIC, combine),
    **dict.fromkeys(_STEPS, step_function),
}
