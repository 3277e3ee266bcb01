"""Formulations of one dense convolution (step one, no padding) and its two gradients.

All compute y = Σ_ij x[i:, j:]·kernel[i, j]; they differ in which builtin operations do the work,
and so in speed: the fastest one depends on the runtime and on the shape. CONV_2D with variable
weights is never handed to XNNPACK, BATCH_MATMUL is (in ai-edge-litert).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from toolkit.autodiff.rules.rule import Pullback, product, shape_of, sum_of

Dilation = tuple[int, int]
Gradients = tuple[Pullback, Pullback]
Formulation = Callable[[tf.Tensor, tf.Tensor, Dilation], tuple[tf.Tensor, Gradients]]


def convolution(x: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tuple[tf.Tensor, Gradients]:
    """CONV_2D forward, TRANSPOSE_CONV for the input; the better one in tflite-runtime."""

    def forward(some_x: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(some_x, kernel, 1, "VALID", dilations=dilation)

    def input_gradient(some_x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        if dilation != (1, 1):
            return _input_gradient(dy, kernel, dilation)
        return tf.nn.conv2d_transpose(dy, kernel, shape_of(some_x), 1, "VALID")

    return _in_parts(x, kernel, dilation, forward, input_gradient, cut_anew=False)


def products(x: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tuple[tf.Tensor, Gradients]:
    """BATCH_MATMUL on gathered columns; the better one in ai-edge-litert."""
    high, wide, c, o = shape_of(kernel)
    weights = tf.reshape(tf.transpose(kernel, [1, 2, 0, 3]), [wide * c, high * o])

    def forward(some_x: tf.Tensor) -> tf.Tensor:
        return _slide(some_x, weights, (high, wide), o, dilation)

    def input_gradient(_: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        return _input_gradient(dy, kernel, dilation)

    return _in_parts(x, kernel, dilation, forward, input_gradient, cut_anew=True)


FORMULATIONS: dict[str, Formulation] = {"convolution": convolution, "products": products}
# Bytes of columns gathered from a batch: above the first the batch is divided until each part is
# below the second, which the processor's cache holds. It saves memory and time, not operations.
_DIVIDE_ABOVE = 8 * 2**20
_PART = 4 * 2**20


def _in_parts(
    x: tf.Tensor,
    kernel: tf.Tensor,
    dilation: Dilation,
    forward: Callable[[tf.Tensor], tf.Tensor],
    input_gradient: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    cut_anew: bool,
) -> tuple[tf.Tensor, Gradients]:
    """Divides the batch, does everything part by part, and puts the results together."""
    count = _count_parts(x, kernel)
    some_x = _divided(x, count)

    def whole_input_gradient(dy: tf.Tensor) -> tf.Tensor:
        return _joined(
            [input_gradient(*pair) for pair in zip(some_x, _divided(dy, count), strict=True)]
        )

    def whole_kernel_gradient(dy: tf.Tensor) -> tf.Tensor:
        # tflite-runtime lays its memory out better if the parts live on, ai-edge-litert if not.
        own_x = _divided_anew(x, count) if cut_anew else some_x
        pairs = zip(own_x, _divided(dy, count), strict=True)
        return sum_of(_kernel_gradient(*pair, kernel, dilation) for pair in pairs)

    return _joined([forward(part) for part in some_x]), (
        whole_input_gradient,
        whole_kernel_gradient,
    )


def _count_parts(x: tf.Tensor, kernel: tf.Tensor) -> int:
    _, wide, c, o = shape_of(kernel)
    n, height, width, _ = shape_of(x)
    gathered = 4 * n * height * width * wide * max(c, o)
    if gathered <= _DIVIDE_ABOVE:
        return 1
    return next(k for k in range(1, n + 1) if n % k == 0 and (gathered <= k * _PART or k == n))


def _divided(x: tf.Tensor, count: int) -> list[tf.Tensor]:
    if count == 1:
        return [x]
    n, *rest = shape_of(x)
    size = n // count
    return [tf.slice(x, [i * size, *[0] * len(rest)], [size, *rest]) for i in range(count)]


def _divided_anew(x: tf.Tensor, count: int) -> list[tf.Tensor]:
    """The same parts, cut from rows: the converter must not take them for those of the forward
    pass, which would have to live until the backward pass needs them again."""
    if count == 1:
        return [x]
    n, *rest = shape_of(x)
    rows = _divided(tf.reshape(x, [n, math.prod(rest)]), count)
    return [tf.reshape(row, [n // count, *rest]) for row in rows]


def _joined(parts: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def _slide(
    x: tf.Tensor,
    weights: tf.Tensor,
    kernel: tuple[int, int],
    o: int,
    dilation: Dilation,
    *,
    backwards: bool = False,
) -> tf.Tensor:
    """Slides a kernel over x with one product: the columns under a kernel row are gathered into
    channels, all kernel rows are applied to all of them, and what belongs together is added up.

    [n·height·w, wide·c] · [wide·c, high·o] takes a third of the memory of whole patches.
    `backwards` turns the kernel by 180°.
    """
    high, wide = kernel
    n, height, width, c = shape_of(x)
    h, w = height - (high - 1) * dilation[0], width - (wide - 1) * dilation[1]
    gathered = tf.reshape(_columns(x, wide, w, dilation[1], backwards), [n * height * w, wide * c])
    y = tf.reshape(product(gathered, weights), [n, height, w, high * o])
    if high == 1:
        return y
    tops = [(high - 1 - i if backwards else i) * dilation[0] for i in range(high)]
    return sum_of(tf.slice(y, [0, top, 0, i * o], [n, h, w, o]) for i, top in enumerate(tops))


def _input_gradient(dy: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tf.Tensor:
    """The kernel, turned by 180° and with its channels exchanged, slides over dy."""
    high, wide, c, o = shape_of(kernel)
    weights = tf.reshape(tf.transpose(kernel, [1, 3, 0, 2]), [wide * o, high * c])
    return _slide(
        _bordered(dy, kernel, dilation), weights, (high, wide), c, dilation, backwards=True
    )


def _kernel_gradient(
    x: tf.Tensor, dy: tf.Tensor, kernel: tf.Tensor, dilation: Dilation
) -> tf.Tensor:
    """dkernel[i, j] = Σ x[i:, j:]ᵀ·dy, one product per kernel row; the thinner side is gathered."""
    _, _, c, o = shape_of(kernel)
    gather = _kernel_gradient_from_x if c < o else _kernel_gradient_from_dy
    return gather(x, dy, kernel, dilation)


def _kernel_gradient_from_x(
    x: tf.Tensor, dy: tf.Tensor, kernel: tf.Tensor, dilation: Dilation
) -> tf.Tensor:
    high, wide, c, o = shape_of(kernel)
    n, h, w, _ = shape_of(dy)
    gathered = _columns(x, wide, w, dilation[1])
    gradient = tf.reshape(dy, [n * h * w, o])
    taps = []
    for i in range(high):
        rows = tf.slice(gathered, [0, i * dilation[0], 0, 0], [n, h, w, wide * c])
        taps.append(product(tf.reshape(rows, [n * h * w, wide * c]), gradient, transpose_a=True))
    return tf.reshape(tf.concat(taps, 0) if high > 1 else taps[0], shape_of(kernel))


def _kernel_gradient_from_dy(
    x: tf.Tensor, dy: tf.Tensor, kernel: tf.Tensor, dilation: Dilation
) -> tf.Tensor:
    """The gathered dy is the one of the input gradient, and is computed once for both."""
    high, wide, c, o = shape_of(kernel)
    n, height, width, _ = shape_of(x)
    gathered = _columns(_bordered(dy, kernel, dilation), wide, width, dilation[1], backwards=True)
    pixels = tf.reshape(x, [n * height * width, c])
    taps = []
    for i in range(high):
        top = (high - 1 - i) * dilation[0]
        rows = tf.slice(gathered, [0, top, 0, 0], [n, height, width, wide * o])
        rows = tf.reshape(rows, [n * height * width, wide * o])
        taps.append(product(pixels, rows, transpose_a=True))
    stacked = tf.reshape(tf.concat(taps, 0) if high > 1 else taps[0], [high, c, wide, o])
    return tf.transpose(stacked, [0, 2, 1, 3])


def _bordered(dy: tf.Tensor, kernel: tf.Tensor, dilation: Dilation) -> tf.Tensor:
    """dy with room around it, so that every window that saw a pixel is there."""
    high, wide, _, _ = shape_of(kernel)
    top, left = (high - 1) * dilation[0], (wide - 1) * dilation[1]
    return tf.pad(dy, [[0, 0], [top, top], [left, left], [0, 0]]) if top or left else dy


def _columns(x: tf.Tensor, wide: int, w: int, dilation: int, backwards: bool = False) -> tf.Tensor:
    """[n, height, w, wide·c]: every pixel together with its right-hand neighbours."""
    n, height, _, c = shape_of(x)
    if wide == 1:
        return x
    shifts = [tf.slice(x, [0, 0, j * dilation, 0], [n, height, w, c]) for j in range(wide)]
    return tf.concat(shifts[::-1] if backwards else shifts, -1)
