"""Convolution: any kernel, stride and padding, reduced to dense windows with step one.

A strided convolution is a dense one on blocks: [8×8, step 4] on 4 channels becomes [2×2, step 1]
on 64. What is left has several formulations, see formulations.py.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from toolkit.autodiff.lower import Layer
from toolkit.autodiff.program import Node
from toolkit.autodiff.rules.formulations import FORMULATIONS
from toolkit.autodiff.rules.rule import Pullback, Pullbacks, Rule, shape_of
from toolkit.autodiff.rules.windows import blocks, framed, shifted, unshifted, windows
from toolkit.errors import UnsupportedOp

Result = tuple[tf.Tensor, Pullbacks]


def conv2d(node: Node, x: tf.Tensor, kernel: tf.Tensor) -> Result:
    high, wide, _, _ = shape_of(kernel)
    rows, columns = windows(node, (high, wide))
    step = (rows.stride, columns.stride)
    if high == wide == 1 and step != (1, 1):
        dense, undo_input = _subsampled(node, x)
        dense_kernel: tf.Tensor = kernel
        undo_kernel: Pullback = _same
    else:
        if step != (1, 1) and (rows.dilation, columns.dilation) != (1, 1):
            raise UnsupportedOp(node.layer, node.op, "stride together with dilation")
        tall, broad = -(-high // step[0]), -(-wide // step[1])
        # The blocks that the windows touch: out + kernel - 1, where the kernel is in blocks.
        need_h = (rows.out - 1 + tall) * step[0] if step[0] > 1 else None
        need_w = (columns.out - 1 + broad) * step[1] if step[1] > 1 else None
        _, height, width, _ = shape_of(x)
        after = rows.after if need_h is None else need_h - height - rows.before
        right = columns.after if need_w is None else need_w - width - columns.before
        padded, unpad = framed(x, (rows.before, after), (columns.before, right))
        dense, unblock = blocks(padded, *step)
        dense_kernel, undo_kernel = _kernel_blocks(kernel, *step)

        def undo_input(dy: tf.Tensor) -> tf.Tensor:
            return unpad(unblock(dy))

    dilation = (rows.dilation, columns.dilation)
    _, height, width, _ = shape_of(dense)
    tall, broad, depth, filters = shape_of(dense_kernel)
    layer = Layer((height, width, depth), (tall, broad, filters), dilation, node.attrs["first"])
    choice = node.attrs["tuning"].choose(layer)
    y, (input_gradient, kernel_gradient) = FORMULATIONS[choice.formulation](
        dense, dense_kernel, dilation, choice.part_bytes
    )
    if isinstance(kernel, np.ndarray):  # frozen: the runtimes' own convolution is the fastest
        y = plain_convolution(node, x, kernel)
    return y, (
        lambda dy: undo_input(input_gradient(dy)),
        lambda dy: undo_kernel(kernel_gradient(dy)),
    )


def plain_convolution(node: Node, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """TensorFlow's own convolution, which has no gradient in TFLite."""
    names = ("strides", "padding", "dilations", "explicit_paddings", "data_format")
    chosen = {name: node.attrs[name] for name in names if name in node.attrs}
    lists = {n: list(v) if isinstance(v, tuple) else v for n, v in chosen.items()}
    return tf.raw_ops.Conv2D(input=x, filter=kernel, **lists)


def _same(dy: tf.Tensor) -> tf.Tensor:
    return dy


def _subsampled(node: Node, x: tf.Tensor) -> tuple[tf.Tensor, Pullback]:
    """A 1×1 window with a step sees every step-th pixel only."""
    rows, columns = windows(node, (1, 1))
    _, height, width, _ = shape_of(x)
    return shifted(x, 0, 0, rows, columns), lambda dy: unshifted(
        dy, 0, 0, rows, columns, (height, width)
    )


def _kernel_blocks(kernel: tf.Tensor, high: int, wide: int) -> tuple[tf.Tensor, Pullback]:
    """[kh, kw, c, o] → [kh/high, kw/wide, high·wide·c, o], padded with zeros to whole blocks."""
    if high == wide == 1:
        return kernel, _same
    kh, kw, c, o = shape_of(kernel)
    tall, broad = -(-kh // high), -(-kw // wide)
    filled, unfill = framed(
        tf.reshape(kernel, [1, kh, kw, c * o]), (0, tall * high - kh), (0, broad * wide - kw)
    )
    split = [tall, high, broad, wide, c * o]
    swapped = [tall, broad, high, wide, c * o]

    def pullback(dy: tf.Tensor) -> tf.Tensor:
        dy = tf.transpose(tf.reshape(dy, swapped), [0, 2, 1, 3, 4])
        return tf.reshape(
            unfill(tf.reshape(dy, [1, tall * high, broad * wide, c * o])), [kh, kw, c, o]
        )

    dense = tf.transpose(tf.reshape(filled, split), [0, 2, 1, 3, 4])
    return tf.reshape(dense, [tall, broad, high * wide * c, o]), pullback


RULES: dict[str, Rule] = {"Conv2D": conv2d}
