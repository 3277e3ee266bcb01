"""Matrix products of every kind. A basic one transposes no factor, and both have equal batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion
from toolkit.errors import UnsupportedOp


def _matmul(call: Call, a: Any, b: Any) -> list[tf.Tensor] | None:
    attrs = call.attrs
    flip_a = attrs.get("transpose_a") or attrs.get("adj_x")
    flip_b = attrs.get("transpose_b") or attrs.get("adj_y")
    lead_a, lead_b = tuple(a.shape[:-2]), tuple(b.shape[:-2])
    if not (flip_a or flip_b) and lead_a == lead_b:
        return None
    a, b = (tf.linalg.matrix_transpose(x) if flip else x for x, flip in ((a, flip_a), (b, flip_b)))
    if lead_a == lead_b:
        return [tf.matmul(a, b)]
    if math.prod(lead_b) == 1:  # all rows of a by one matrix
        rows = tf.reshape(a, [-1, a.shape[-1]])
        return [tf.reshape(tf.matmul(rows, tf.reshape(b, b.shape[-2:])), call.shapes[0])]
    lead = np.broadcast_shapes(lead_a, lead_b)
    a, b = (tf.broadcast_to(x, [*lead, *x.shape[-2:]]) for x in (a, b))
    return [tf.matmul(a, b)]


def _einsum(call: Call, *factors: Any) -> list[tf.Tensor]:
    """From left to right, two factors at a time."""
    terms, result = _letters(call, [len(x.shape) for x in factors])
    (left, *lefts), (x, *more) = terms, factors
    for i, (right, y) in enumerate(zip(lefts, more, strict=True)):
        later = {*result, *"".join(lefts[i + 1 :])}
        kept = "".join(dict.fromkeys(c for c in left + right if c in later))
        x, left = _contracted(x, left, y, right, kept), kept
    x, left = _summed(x, left, set(result))
    return [_arranged(x, left, result)]


def _letters(call: Call, ranks: list[int]) -> tuple[list[str], str]:
    """The equation with a letter for every axis, those of `...` included."""
    inputs, _, result = call.attrs["equation"].replace(" ", "").partition("->")
    terms = inputs.split(",")
    widths = [r - len(t) + 3 if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    dots = "αβγδεζηθ"[: max(widths)]  # letters that no equation uses
    named = [
        term.replace("...", dots[len(dots) - width :])
        for term, width in zip(terms, widths, strict=True)
    ]
    if any(len(set(term)) < len(term) for term in named):
        raise UnsupportedOp(call.layer, call.op, "a diagonal")
    return named, result.replace("...", dots)


def _contracted(x: Any, left: str, y: Any, right: str, kept: str) -> tf.Tensor:
    """Σ over the letters that are in both and not kept, as one batched product.

    x becomes [batches, its own letters, summed ones], y [batches, summed ones, its own letters].
    """
    x, left = _summed(x, left, {*right, *kept})
    y, right = _summed(y, right, {*left, *kept})
    both = [c for c in left if c in right]
    batch = [c for c in both if c in kept]
    inner = [c for c in both if c not in kept]
    own_x, own_y = [c for c in left if c not in right], [c for c in right if c not in left]
    sizes = dict(zip(left, x.shape, strict=True)) | dict(zip(right, y.shape, strict=True))

    def size(letters: list[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    a = _arranged(x, left, "".join(batch + own_x + inner))
    b = _arranged(y, right, "".join(batch + inner + own_y))
    batches = [size(batch)] if batch else []
    a = tf.reshape(a, [*batches, size(own_x), size(inner)])
    b = tf.reshape(b, [*batches, size(inner), size(own_y)])
    letters = batch + own_x + own_y
    product = tf.reshape(tf.matmul(a, b), [sizes[c] for c in letters])
    return _arranged(product, "".join(letters), kept)


def _summed(x: Any, letters: str, used: set[str]) -> tuple[tf.Tensor, str]:
    """Axes that nothing else reads are summed at once."""
    axes = [i for i, c in enumerate(letters) if c not in used]
    return (tf.reduce_sum(x, axes) if axes else x), "".join(c for c in letters if c in used)


def _arranged(x: Any, letters: str, wanted: str) -> tf.Tensor:
    return x if letters == wanted else tf.transpose(x, [letters.index(c) for c in wanted])


EXPANSIONS: dict[str, Expansion] = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Einsum": _einsum,
}
