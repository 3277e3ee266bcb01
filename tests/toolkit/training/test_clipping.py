"""Gradients are cut back as Keras does it, also where a tensor is kept in blocks."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from toolkit.branch.optimizers import SGD
from toolkit.training.clipping import clipped
from toolkit.training.groups import Group

SHAPES = {"a/kernel": (4, 3), "a/bias": (3,), "b/kernel": (6, 5)}


@pytest.mark.parametrize(
    "limit",
    [{"clipvalue": 0.4}, {"clipnorm": 1.5}, {"global_clipnorm": 2.0}, {"clipnorm": 100.0}, {}],
    ids=repr,
)
def test_gradients_are_clipped_as_keras_does_it(limit: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    gradients = {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
    variables = [keras.Variable(np.zeros(shape)) for shape in SHAPES.values()]
    theirs = keras.optimizers.SGD(1.0, **limit)
    theirs.build(variables)
    theirs.apply([tf.constant(g) for g in gradients.values()], variables)

    blocks = {
        "b/kernel/0": gradients["b/kernel"][:, :2],
        "b/kernel/1": gradients["b/kernel"][:, 2:],
    }
    groups = [
        Group(0, True, {name: SHAPES[name] for name in ("a/kernel", "a/bias")}),
        *(Group(i + 1, False, {n: b.shape}) for i, (n, b) in enumerate(blocks.items())),
    ]
    held = {**gradients, **blocks}
    given = [g.join({n: tf.constant(held[n]) for n in g.shapes}) for g in groups]
    found: dict[str, Any] = {}
    optimizer = SGD(1.0, **limit)
    for g, vector in zip(groups, clipped(optimizer, groups, given, _owner), strict=True):
        found |= g.cut(vector)
    ours = [
        found["a/kernel"],
        found["a/bias"],
        np.concatenate([found["b/kernel/0"], found["b/kernel/1"]], 1),
    ]
    for mine, variable in zip(ours, variables, strict=True):
        np.testing.assert_allclose(mine, -np.asarray(variable), rtol=1e-5)


def _owner(variable: str) -> str:
    return "b/kernel" if variable.startswith("b/kernel") else variable
