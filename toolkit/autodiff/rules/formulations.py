"""Formulations of one dense convolution (step one, no padding) and its two gradients.

All compute y = Σ_ij x[i:, j:]·kernel[i, j]; they differ in which builtin operations do the work,
and so in speed: the fastest one depends on the runtime and on the shape. CONV_2D with variable
weights is never handed to XNNPACK, BATCH_MATMUL is (in ai-edge-litert).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from toolkit.autodiff.rules.rule import Pullback, product, shape_of

Dilation = tuple[int, int]
Gradients = tuple[Pullback, Pullback]
Formulation = Callable[[tf.Tensor, tf.Tensor, Dilation], tuple[tf.Tensor, Gradients]]


def convolution(x: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tuple[tf.Tensor, Gradients]:
    """CONV_2D forward, TRANSPOSE_CONV for the input; the better one in tflite-runtime."""
    y = tf.nn.conv2d(x, kernel, 1, "VALID", dilations=dilation)

    def input_gradient(dy: tf.Tensor) -> tf.Tensor:
        if dilation != (1, 1):
            return _products(_bordered(dy, kernel, dilation), _flipped(kernel), dilation)
        return tf.nn.conv2d_transpose(dy, kernel, shape_of(x), 1, "VALID")

    return y, (input_gradient, lambda dy: _kernel_gradient(x, dy, kernel, dilation))


def products(x: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tuple[tf.Tensor, Gradients]:
    """BATCH_MATMUL on gathered patches; the better one in ai-edge-litert."""
    return _products(x, kernel, dilation), (
        lambda dy: _products(_bordered(dy, kernel, dilation), _flipped(kernel), dilation),
        lambda dy: _kernel_gradient(x, dy, kernel, dilation),
    )


FORMULATIONS: dict[str, Formulation] = {"convolution": convolution, "products": products}


def _products(x: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tf.Tensor:
    """One product per convolution: the columns under a kernel row are gathered into channels,
    all kernel rows are applied to all of them, and what belongs together is added up.

    [n·height·w, wide·c] · [wide·c, high·o]: a third of the memory of whole patches.
    """
    high, wide, c, o = shape_of(kernel)
    n, height, width, _ = shape_of(x)
    h, w = height - (high - 1) * dilation[0], width - (wide - 1) * dilation[1]
    gathered = tf.reshape(_columns(x, wide, w, dilation), [n * height * w, wide * c])
    weights = tf.reshape(kernel, [high, wide * c, o])
    if high > 1:
        weights = tf.transpose(weights, [1, 0, 2])
    y = product(gathered, tf.reshape(weights, [wide * c, high * o]))
    y = tf.reshape(y, [n, height, w, high * o])
    if high == 1:
        return y
    return tf.add_n(
        [tf.slice(y, [0, i * dilation[0], 0, i * o], [n, h, w, o]) for i in range(high)]
    )


def _kernel_gradient(
    x: tf.Tensor, dy: tf.Tensor, kernel: tf.Tensor, dilation: Dilation
) -> tf.Tensor:
    """dkernel[i, j] = Σ x[i:, j:]ᵀ·dy, one product per kernel row: the row's columns are gathered."""
    high, wide, c, o = shape_of(kernel)
    n, h, w, _ = shape_of(dy)
    gathered = _columns(x, wide, w, dilation)
    gradient = tf.reshape(dy, [n * h * w, o])
    taps = []
    for i in range(high):
        rows = tf.slice(gathered, [0, i * dilation[0], 0, 0], [n, h, w, wide * c])
        taps.append(product(tf.reshape(rows, [n * h * w, wide * c]), gradient, transpose_a=True))
    return tf.reshape(tf.concat(taps, 0) if high > 1 else taps[0], shape_of(kernel))


def _bordered(dy: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tf.Tensor:
    """dy with room around it, so that every window that saw a pixel is there."""
    high, wide, _, _ = shape_of(kernel)
    top, left = (high - 1) * dilation[0], (wide - 1) * dilation[1]
    return tf.pad(dy, [[0, 0], [top, top], [left, left], [0, 0]]) if top or left else dy


def _flipped(kernel: tf.Tensor) -> tf.Tensor:
    """Turned by 180° with input and output channels exchanged."""
    return tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])


def _columns(x: tf.Tensor, wide: int, w: int, dilation: Dilation) -> tf.Tensor:
    """[n, height, w, wide·c]: every pixel together with its right-hand neighbours."""
    n, height, _, c = shape_of(x)
    if wide == 1:
        return x
    shifts = [tf.slice(x, [0, 0, j * dilation[1], 0], [n, height, w, c]) for j in range(wide)]
    return tf.concat(shifts, -1)
