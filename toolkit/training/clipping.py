"""Gradients that are too large, cut back as Keras does it: g ← g · c / max(‖g‖, c)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from toolkit.branch.optimizers import Optimizer
from toolkit.training.groups import Group


def clipped(
    optimizer: Optimizer,
    groups: Sequence[Group],
    gradients: Sequence[tf.Tensor],
    owner: Callable[[str], str],
) -> list[tf.Tensor]:
    """Returns the gradients as the optimiser's limits leave them.

    `owner` names the model's tensor that a variable is a block of: its norm is that of all blocks.
    """
    if (limit := optimizer.clipvalue) is not None:
        return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
    if (limit := optimizer.global_clipnorm) is not None:
        squares = [tf.reduce_sum(gradient * gradient) for gradient in gradients]
        factor = _factor(tf.add_n(squares), limit) if squares else 1.0
        return [gradient * factor for gradient in gradients]
    if (limit := optimizer.clipnorm) is None:
        return list(gradients)
    parts = [g.cut(gradient) for g, gradient in zip(groups, gradients, strict=True)]
    factors = {n: _factor(square, limit) for n, square in _squares(parts, owner).items()}
    return [
        g.join({name: part * factors[owner(name)] for name, part in cut.items()})
        for g, cut in zip(groups, parts, strict=True)
    ]


def _squares(
    parts: Sequence[Mapping[str, tf.Tensor]], owner: Callable[[str], str]
) -> dict[str, tf.Tensor]:
    found: dict[str, tf.Tensor] = {}
    for cut in parts:
        for name, part in cut.items():
            square = tf.reduce_sum(part * part)
            found[owner(name)] = found[owner(name)] + square if owner(name) in found else square
    return found


def _factor(square: tf.Tensor, limit: float) -> tf.Tensor:
    return limit / tf.maximum(tf.sqrt(square), limit)
