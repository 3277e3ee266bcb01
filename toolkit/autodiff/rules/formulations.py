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

from toolkit.autodiff.rules.rule import Pullback, concatenated, product, shape_of, sum_of

Dilation = tuple[int, int]
Gradients = tuple[Pullback, Pullback]
# (x, kernel, dilation, bytes of a part) → (y, gradients of x and of the kernel)
Formulation = Callable[[tf.Tensor, tf.Tensor, Dilation, int], tuple[tf.Tensor, Gradients]]
Tap = tuple[int, int]

_WHOLE = 4 * 2**20  # bytes


@dataclass(frozen=True)
class Taps:
    """The pixels under one kernel that a step of the computation takes care of.

    A tap's place is (row, column) within the kernel; an axis that is not taken has one tap at 0.
    Between the steps pixels are the rows of one matrix, [1, pixels, channels].

    XNNPACK copies what it reshapes if that has several users. So tensors are reshaped where they
    have one: before they are laid side by side, and after they are cut.
    """

    places: tuple[Tap, ...]
    large: tuple[int, int]  # pixels before the step
    small: tuple[int, int]  # pixels that a window at each place sees

    def collect(self, x: tf.Tensor, images: range) -> tf.Tensor:
        """[_, *large, c] → [1, pixels, taps·c]: every pixel beside its neighbours."""
        return _beside([_window(x, images, at, self.small) for at in self.places])

    def uncollect(self, dy: tf.Tensor, n: int) -> tf.Tensor:
        """The transpose of `collect`: every part goes back to where it was, and is added up."""
        _, pixels, many = shape_of(dy)
        c = many // len(self.places)

        def part(k: int) -> tf.Tensor:
            return tf.slice(dy, [0, 0, k * c], [1, pixels, c]) if c < many else dy

        return sum_of(
            self._unslice(tf.reshape(part(k), [n, *self.small, c]), at)
            for k, at in enumerate(self.places)
        )

    def reduce(self, y: tf.Tensor, n: int) -> tf.Tensor:
        """[1, pixels, taps·o] → [n, *small, o]: the sum of what belongs together."""
        o = shape_of(y)[-1] // len(self.places)
        if len(self.places) == 1:
            return tf.reshape(y, [n, *self.small, o])
        y = tf.reshape(y, [n, *self.large, len(self.places) * o])
        return sum_of(
            tf.slice(y, [0, *at, k * o], [n, *self.small, o]) for k, at in enumerate(self.places)
        )

    def unreduce(self, dy: tf.Tensor) -> tf.Tensor:
        """The transpose of `reduce`."""
        return _beside([self._unslice(dy, at) for at in self.places])

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
    n, height, width, _ = shape_of(x)
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
    weights = tf.reshape(_transpose(kernel, order), [1, k, many])
    # A product with a transposed operand is slow in tflite-runtime, so the kernel is turned first.
    cut = order.index(2) + 1
    turned = tf.reshape(tf.transpose(kernel, [*order[cut:], *order[:cut]]), [1, many, k])
    parts = _parts(n, 4 * math.prod(between) * max(k, many), part_bytes)
    size = len(parts[0])

    def forward() -> tf.Tensor:
        return concatenated(
            [reduced.reduce(product(collected.collect(x, p), weights), size) for p in parts], 0
        )

    def input_gradient(dy: tf.Tensor) -> tf.Tensor:
        return concatenated(
            [
                collected.uncollect(product(reduced.unreduce(_images(dy, p)), turned), size)
                for p in parts
            ],
            0,
        )

    def kernel_gradient(dy: tf.Tensor) -> tf.Tensor:
        whole = range(size)
        taps = sum_of(
            product(
                # Cut in another way than for the forward pass: the converter must not take the
                # one for the other, which would have to live until the backward pass.
                collected.collect(_images(x, p), whole),
                reduced.unreduce(_images(dy, p)),
                transpose_a=True,
            )
            for p in parts
        )
        taps = tf.reshape(taps, [(high, wide, c, o)[axis] for axis in order])
        return _transpose(taps, [order.index(axis) for axis in range(4)])

    return forward(), (input_gradient, kernel_gradient)


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


def _parts(batch: int, example_bytes: int, part_bytes: int) -> list[range]:
    """Equal parts of a batch: as few as possible, and the cache holds each.

    A batch that is not twice as large stays whole, up to `_WHOLE`.
    """
    fits = (
        k for k in range(1, batch) if batch % k == 0 and batch // k * example_bytes <= part_bytes
    )
    whole = batch * example_bytes <= min(2 * part_bytes, _WHOLE)
    size = batch if whole else batch // next(fits, batch)
    return [range(start, start + size) for start in range(0, batch, size)]


def _images(x: tf.Tensor, images: range) -> tf.Tensor:
    """Some images of a batch."""
    n, height, width, _ = shape_of(x)
    return x if len(images) == n else _window(x, images, (0, 0), (height, width))


def _window(x: tf.Tensor, images: range, at: Tap, size: tuple[int, int]) -> tf.Tensor:
    """What a window of that size sees in some images."""
    n, height, width, c = shape_of(x)
    if len(images) == n and size == (height, width):
        return x
    return tf.slice(x, [images.start, *at, 0], [len(images), *size, c])


def _beside(parts: list[tf.Tensor]) -> tf.Tensor:
    """Images side by side, as the rows of one matrix."""
    rows = [tf.reshape(part, [1, -1, shape_of(part)[-1]]) for part in parts]
    return tf.concat(rows, -1) if len(rows) > 1 else rows[0]


def _places(high: int, wide: int, dilation: Dilation) -> tuple[Tap, ...]:
    return tuple((i * dilation[0], j * dilation[1]) for i in range(high) for j in range(wide))


def _transpose(x: tf.Tensor, order: list[int]) -> tf.Tensor:
    return x if order == sorted(order) else tf.transpose(x, order)
