"""Kept features: made once, read afterwards, and none beyond what there is room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firmware_sim.tensor_spec import Array
from firmware_sim.training.features import FeatureCache

ROWS = 4


class Maker:
    """Makes rows that tell which example they are of, and counts."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, numbers: Array) -> Array:
        self.made += numbers.tolist()
        return np.stack([np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * n for n in numbers])


def test_a_row_is_made_once_and_those_without_room_each_time(tmp_path: Path) -> None:
    cache, make = FeatureCache(tmp_path / "state", (2, 3), ROWS), Maker()
    for numbers in ([1, 3, 5], [3, 0, 1, 5]):
        found = cache.take(np.array(numbers), make)
        np.testing.assert_array_equal(found[:, 1, 2], [10 * n + 5 for n in numbers])
    assert make.made == [1, 3, 5, 0, 5]
    cache.forget(np.array([3, 5]))
    cache.take(np.array([1, 3]), make)
    assert make.made[5:] == [3]
    assert list((tmp_path / "state").iterdir()) == []  # the file has no name
