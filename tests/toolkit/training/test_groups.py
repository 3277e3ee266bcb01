"""Groups: every tensor in exactly one, order kept, and join undone by cut."""

import math

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.autodiff.blocks import LARGE
from toolkit.training.groups import group

SHAPES = st.lists(st.sampled_from([(3,), (2, 2), (LARGE,), (LARGE // 4, 8), (1,)]), max_size=9)


@given(SHAPES, SHAPES)
@settings(deadline=None, max_examples=50)
def test_groups_partition_the_tensors(
    shared: list[tuple[int, ...]], local: list[tuple[int, ...]]
) -> None:
    names = [f"s{i}" for i in range(len(shared))], [f"l{i}" for i in range(len(local))]
    shapes = dict(zip(names[0] + names[1], shared + local, strict=True))
    groups = group(shapes, *names)
    assert [name for g in groups for name in g.shapes] == names[0] + names[1]
    for g in groups:
        assert {name[0] for name in g.shapes} == ({"s"} if g.shared else {"l"})
        large = [name for name in g.shapes if math.prod(shapes[name]) >= LARGE]
        assert not large or len(g.shapes) == 1, "a large tensor is alone"
        assert g.shape == (shapes[next(iter(g.shapes))] if len(g.shapes) == 1 else (g.size,))
    assert [g.number for g in groups] == list(range(len(groups)))


def test_cut_undoes_join() -> None:
    shapes = {f"t{i}": (i + 1, 2) for i in range(13)}  # more than one CONCATENATION takes
    (only,) = group(shapes, [], list(shapes))
    tensors = {n: np.random.default_rng(0).random(s).astype("f") for n, s in shapes.items()}
    joined = only.join({name: tf.constant(value) for name, value in tensors.items()})
    assert joined.shape == (only.size,)
    for name, value in only.cut(joined).items():
        np.testing.assert_array_equal(value, tensors[name])
