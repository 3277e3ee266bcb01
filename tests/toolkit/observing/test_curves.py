"""Curves of bounded size."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.observing.curves import Curve


@settings(max_examples=100, deadline=None)
@given(rounds=st.lists(st.integers(0, 5000), min_size=1, max_size=400), most=st.integers(4, 50))
def test_a_curve_is_short_and_has_its_first_and_newest_point(rounds: list[int], most: int) -> None:
    curve, taken = Curve(most), dict[int, float]()
    for value, number in enumerate(rounds):
        if curve.add(number, float(value)):
            taken[number] = float(value)
    points = list(curve.points)
    assert len(points) <= most
    assert points == sorted(points)
    assert all(taken[number] == value for number, value in points)
    assert points[0][0] == min(taken)
    assert points[-1] == (max(taken), taken[max(taken)])


def test_points_of_a_long_curve_are_equally_far_apart() -> None:
    curve = Curve(100)
    for number in range(1000):
        curve.add(number, number / 2)
    distances = {b[0] - a[0] for a, b in zip(curve.points, curve.points[1:-1], strict=False)}
    assert distances == {16}
    assert curve.points[-1] == (999, 499.5)
