"""Five axes become four: which axes go together. That the numbers stay is seen in both runtimes
by tests/toolkit/autodiff/test_runtimes.py, whose volumes have five axes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.conversion.passes.flatten_broadcasts import Shape, merged


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((4, 3, 4, 2, 5), (5,), ((96, 5), (1, 5))),
        ((4, 3, 1, 2, 5), (4, 1, 1, 1, 5), ((4, 6, 5), (4, 1, 5))),
        ((2, 3, 4, 5, 6), (), ((720,), (1,))),
        ((2, 1, 4, 5, 6), (1, 3, 4, 1, 1), ((2, 1, 4, 30), (1, 3, 4, 1))),
    ],
)
def test_neighbours_that_are_broadcast_alike_are_one_axis(
    left: Shape, right: Shape, expected: tuple[Shape, Shape]
) -> None:
    assert merged(left, right) == expected


@given(axes=st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abn")), min_size=5, max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_sum_is_the_same(axes: list[tuple[int, str]]) -> None:
    a = np.random.default_rng(0).normal(size=[1 if k == "b" else n for n, k in axes])
    b = np.random.default_rng(1).normal(size=[1 if k == "a" else n for n, k in axes])
    left, right = merged(a.shape, b.shape)
    total = a + b
    np.testing.assert_array_equal((a.reshape(left) + b.reshape(right)).reshape(total.shape), total)
