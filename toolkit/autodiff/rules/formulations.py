"""Formulations of one dense convolution (step one, no padding) and its two gradients.

All compute y = Σ_ij x[i:, j:]·kernel[i, j]; they differ in which builtin operations do the work,
and so in speed: the fastest one depends on the runtime and on the shape.

As products: some axes of the kernel are gathered, which means that the pixels under them are laid
side by side before the product; over the others the product's results are summed afterwards.

    gathered   [rows, K]·[K, N] with K =     N =           what is moved besides
    both       high·wide·c                   o             whole patches
    columns    wide·c                        high·o
    rows       high·c                        wide·o
    none       c                             high·wide·o   whole patches of the result

The gradients are the same three steps transposed, so every product has the same size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from toolkit.autodiff.rules.rule import Pullback, product, shape_of, sum_of

Dilation = tuple[int, int]
Gradients = tuple[Pullback, Pullback]
# (x, kernel, dilation, bytes of a part) → (y, gradients of x and of the kernel)
Formulation = Callable[[tf.Tensor, tf.Tensor, Dilation, int], tuple[tf.Tensor, Gradients]]
Tap = tuple[int, int]


@dataclass(frozen=True)
class Taps:
    """The pixels under one kernel that a step of the computation takes care of.

    A tap's place is (row, column) within the kernel; an axis that is not taken has one tap at 0.
    """

    places: tuple[Tap, ...]
    large: tuple[int, int]  # pixels before the step
    small: tuple[int, int]  # pixels that a window at each place sees

    def collect(self, x: tf.Tensor) -> tf.Tensor:
        """[n, *large, c] → [n, *small, taps·c]: every pixel beside its neighbours."""
        n, _, _, c = shape_of(x)
        if len(self.places) == 1:
            return x
        return tf.concat([tf.slice(x, [0, *at, 0], [n, *self.small, c]) for at in self.places], -1)

    def uncollect(self, dy: tf.Tensor) -> tf.Tensor:
        """The transpose of `collect`: every part goes back to where it was, and is added up."""
        n, _, _, many = shape_of(dy)
        c = many // len(self.places)
        if len(self.places) == 1:
            return self._unslice(dy, self.places[0])
        parts = (
            tf.slice(dy, [0, 0, 0, k * c], [n, *self.small, c]) for k in range(len(self.places))
        )
        return sum_of(map(self._unslice, parts, self.places))

    def reduce(self, y: tf.Tensor) -> tf.Tensor:
        """[n, *large, taps·o] → [n, *small, o]: the sum of what belongs together."""
        n, _, _, many = shape_of(y)
        o = many // len(self.places)
        if len(self.places) == 1:
            return y
        return sum_of(
            tf.slice(y, [0, *at, k * o], [n, *self.small, o]) for k, at in enumerate(self.places)
        )

    def unreduce(self, dy: tf.Tensor) -> tf.Tensor:
        """The transpose of `reduce`."""
        parts = [self._unslice(dy, at) for at in self.places]
        return tf.concat(parts, -1) if len(parts) > 1 else parts[0]

    def _unslice(self, part: tf.Tensor, at: Tap) -> tf.Tensor:
        (top, left), (height, width), (h, w) = at, self.large, self.small
        if self.large == self.small:
            return part
        return tf.pad(part, [[0, 0], [top, height - h - top], [left, width - w - left], [0, 0]])


def products(
    gathered: str, x: tf.Tensor, kernel: tf.Tensor, dilation: Dilation, part_bytes: int
) -> tuple[tf.Tensor, Gradients]:
    """Gather, BATCH_MATMUL, sum."""
    high, wide, c, o = shape_of(kernel)
    _, height, width, _ = shape_of(x)
    rows, columns = gathered in ("both", "rows"), gathered in ("both", "columns")
    out = height - (high - 1) * dilation[0], width - (wide - 1) * dilation[1]
    between = out[0] if rows else height, out[1] if columns else width
    collected = Taps(
        _places(high if rows else 1, wide if columns else 1, dilation), (height, width), between
    )
    reduced = Taps(_places(1 if rows else high, 1 if columns else wide, dilation), between, out)
    order = [axis for axis, taken in ((0, rows), (1, columns)) if taken]
    order = [*order, 2, *(axis for axis in (0, 1) if axis not in order), 3]
    k, many = len(collected.places) * c, len(reduced.places) * o
    weights = tf.reshape(_transpose(kernel, order), [k, many])
    # A product with a transposed operand is slow in tflite-runtime, so the kernel is turned first.
    cut = order.index(2) + 1
    turned = tf.reshape(tf.transpose(kernel, [*order[cut:], *order[:cut]]), [many, k])

    def forward(some_x: tf.Tensor) -> tf.Tensor:
        y = product(_flat(collected.collect(some_x)), weights)
        return reduced.reduce(tf.reshape(y, [-1, *between, many]))

    def input_gradient(_: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        dx = product(_flat(reduced.unreduce(dy)), turned)
        return collected.uncollect(tf.reshape(dx, [-1, *between, k]))

    def kernel_gradient(some_x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        left, right = collected.collect(some_x), reduced.unreduce(dy)
        taps = product(_flat(left), _flat(right), transpose_a=True)
        taps = tf.reshape(taps, [(high, wide, c, o)[axis] for axis in order])
        return _transpose(taps, [order.index(axis) for axis in range(4)])

    count = _count_parts(shape_of(x)[0], 4 * math.prod(between) * max(k, many), part_bytes)
    return _in_parts(x, count, forward, input_gradient, kernel_gradient)


def convolution(
    x: tf.Tensor, kernel: tf.Tensor, dilation: Dilation, part_bytes: int
) -> tuple[tf.Tensor, Gradients]:
    """CONV_2D forward, TRANSPOSE_CONV for the input, products for the weights."""
    plain = dilation == (1, 1)
    _, (by_products, kernel_gradient) = products("columns", x, kernel, dilation, part_bytes)

    def input_gradient(dy: tf.Tensor) -> tf.Tensor:
        if not plain:
            return by_products(dy)
        return tf.nn.conv2d_transpose(dy, kernel, shape_of(x), 1, "VALID")

    y = tf.nn.conv2d(x, kernel, 1, "VALID", dilations=dilation)
    return y, (input_gradient, kernel_gradient)


GATHERED = ("both", "columns", "rows", "none")
FORMULATIONS: dict[str, Formulation] = {
    "convolution": convolution,
    **{gathered: functools.partial(products, gathered) for gathered in GATHERED},
}


def _in_parts(
    x: tf.Tensor,
    count: int,
    forward: Callable[[tf.Tensor], tf.Tensor],
    input_gradient: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    kernel_gradient: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> tuple[tf.Tensor, Gradients]:
    """Divides the batch, does everything part by part, and puts the results together."""
    some_x = _divided(x, count)

    def whole_input_gradient(dy: tf.Tensor) -> tf.Tensor:
        pairs = zip(some_x, _divided(dy, count), strict=True)
        return _joined([input_gradient(*pair) for pair in pairs])

    def whole_kernel_gradient(dy: tf.Tensor) -> tf.Tensor:
        pairs = zip(_divided_anew(x, count), _divided(dy, count), strict=True)
        return sum_of(kernel_gradient(*pair) for pair in pairs)

    return _joined([forward(part) for part in some_x]), (
        whole_input_gradient,
        whole_kernel_gradient,
    )


def _count_parts(batch: int, example_bytes: int, part_bytes: int) -> int:
    """Into how many equal parts the batch is divided: as few as possible, the cache holds each.

    A batch that is not twice as large stays whole.
    """
    if batch * example_bytes <= 2 * part_bytes:
        return 1
    fits = (
        k for k in range(1, batch) if batch % k == 0 and batch // k * example_bytes <= part_bytes
    )
    return next(fits, batch)


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
    rows = _divided(tf.reshape(x, [n, *[1] * (len(rest) - 1), math.prod(rest)]), count)
    return [tf.reshape(row, [n // count, *rest]) for row in rows]


def _joined(parts: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, shape_of(x)[-1]])


def _places(high: int, wide: int, dilation: Dilation) -> tuple[Tap, ...]:
    return tuple((i * dilation[0], j * dilation[1]) for i in range(high) for j in range(wide))


def _transpose(x: tf.Tensor, order: list[int]) -> tf.Tensor:
    return x if order == sorted(order) else tf.transpose(x, order)
