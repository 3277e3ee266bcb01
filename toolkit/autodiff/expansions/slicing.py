"""Slices of every kind: a plain slice is a basic operation, with step one and along given axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff.expansions.call import Call, Expansion, cut


def _strided_slice(
    call: Call, x: tf.Tensor, begin: Any, end: Any, strides: Any
) -> list[tf.Tensor] | None:
    steps = call.numbers(strides)
    attrs = call.attrs
    if set(steps) == {1} and not (attrs["ellipsis_mask"] or attrs["new_axis_mask"]):
        return None
    for axis, taken in enumerate(_ranges(call, x, call.numbers(begin), call.numbers(end), steps)):
        x = _every(x, axis, taken)
    return [tf.reshape(x, call.shapes[0])]


def _ranges(
    call: Call, x: tf.Tensor, begin: list[int], end: list[int], steps: list[int]
) -> list[range]:
    """Which entries are taken along each axis of x; what adds an axis takes none."""
    attrs, taken = call.attrs, list[range]()
    named = sum(
        not (attrs["new_axis_mask"] >> i & 1 or attrs["ellipsis_mask"] >> i & 1)
        for i in range(len(begin))
    )
    for i in range(len(begin)):
        if attrs["ellipsis_mask"] >> i & 1:
            taken += [range(x.shape[len(taken) + k]) for k in range(len(x.shape) - named)]
        elif not attrs["new_axis_mask"] >> i & 1:
            every = range(x.shape[len(taken)])
            if attrs["shrink_axis_mask"] >> i & 1:
                taken.append(range(every[begin[i]], every[begin[i]] + 1))
            else:
                first = None if attrs["begin_mask"] >> i & 1 else begin[i]
                last = None if attrs["end_mask"] >> i & 1 else end[i]
                taken.append(every[first : last : steps[i]])
    return taken


def _every(x: tf.Tensor, axis: int, taken: range) -> tf.Tensor:
    """The entries of a range along an axis: reversed, cut out, and the first of every block."""
    size, step = x.shape[axis], taken.step
    if taken == range(size):
        return x
    if step < 0:
        x = tf.reverse(x, [axis])
        taken, step = range(size - 1 - taken[0], size - taken[-1], -step), -step
    lead, rest = list(x.shape[:axis]), list(x.shape[axis + 1 :])
    x = cut(x, axis, taken.start, taken.start + (len(taken) - 1) * step + 1)
    if step == 1:
        return x
    short = len(taken) * step - x.shape[axis]
    x = tf.pad(x, [[0, short if i == axis else 0] for i in range(len(x.shape))])
    blocks = tf.reshape(x, [*lead, len(taken), step, *rest])
    return tf.reshape(cut(blocks, axis + 1, 0, 1), [*lead, len(taken), *rest])


def _slice(call: Call, x: tf.Tensor, begin: Any, size: Any) -> list[tf.Tensor]:
    starts = call.numbers(begin)
    ends = np.add(starts, call.shapes[0])
    return [x[tuple(slice(a, int(b)) for a, b in zip(starts, ends, strict=True))]]


EXPANSIONS: dict[str, Expansion] = {"StridedSlice": _strided_slice, "Slice": _slice}
