"""Splits: disjoint, complete, seeded, with the fractions that were asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_sim.tensor_spec import Array
from toolkit.errors import ExperimentError
from toolkit.experiment.supervised.splits import Part, divide

SPLITS = st.one_of(st.just("iid"), st.floats(0.01, 1e3).map(lambda alpha: f"dirichlet:{alpha:.3f}"))


def labels_of(count: int, classes: int) -> Array:
    return np.random.default_rng(count).integers(0, classes, count).astype(np.int32)


def numbers(part: Part) -> Array:
    return np.concatenate([part.training, part.validation])


@given(
    count=st.integers(40, 700),
    classes=st.integers(1, 12),
    weak=st.floats(0.06, 0.94),
    split=SPLITS,
    seed=st.integers(0, 2**32),
)
def test_parts_are_disjoint_complete_and_as_large_as_asked(
    count: int, classes: int, weak: float, split: str, seed: int
) -> None:
    labels = labels_of(count, classes)
    fractions = {"weak": weak, "powerful": 1 - weak}
    parts = divide(labels, fractions, split, seed)
    held = {device: numbers(part) for device, part in parts.items()}
    assert sorted(np.concatenate(list(held.values()))) == list(range(count))
    assert len(held["weak"]) == round(weak * count)
    for part in parts.values():
        own = len(numbers(part))
        assert len(part.training) == pytest.approx(0.8 * own, abs=0.5) or own < 5
        assert len(part.training) and len(part.validation)
    again = divide(labels, fractions, split, seed)
    for device, part in parts.items():
        np.testing.assert_array_equal(part.training, again[device].training)
        np.testing.assert_array_equal(part.validation, again[device].validation)


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.5"])
def test_another_seed_is_another_split(split: str) -> None:
    labels = labels_of(500, 10)
    first, second = (divide(labels, {"a": 0.5, "b": 0.5}, split, seed) for seed in (0, 1))
    assert set(numbers(first["a"])) != set(numbers(second["a"]))


def test_any_number_of_devices() -> None:
    parts = divide(labels_of(1000, 10), {"a": 0.2, "b": 0.3, "c": 0.5}, "dirichlet:0.3", 7)
    assert [len(numbers(part)) for part in parts.values()] == [200, 300, 500]
    assert len(set(np.concatenate([numbers(part) for part in parts.values()]))) == 1000


def imbalance(split: str) -> float:
    """How far the classes of the weak device are from an even mixture: 0 is even, 0.9 is one."""
    labels = np.repeat(np.arange(10), 200)
    found = []
    for seed in range(10):
        own = labels[numbers(divide(labels, {"weak": 0.1, "powerful": 0.9}, split, seed)["weak"])]
        shares = np.bincount(own, minlength=10) / len(own)
        found.append(np.abs(shares - 0.1).sum() / 2)
    return float(np.mean(found))


def test_a_small_alpha_gives_a_device_few_classes() -> None:
    by_chance = imbalance("iid")
    assert imbalance("dirichlet:1000") < by_chance < imbalance("dirichlet:5")
    assert imbalance("dirichlet:5") < 0.3 < imbalance("dirichlet:0.1")


def test_a_part_without_examples_is_refused() -> None:
    with pytest.raises(ExperimentError) as caught:
        divide(labels_of(30, 3), {"weak": 0.03, "powerful": 0.97}, "iid", 0)
    assert str(caught.value) == (
        "the weak device would hold 1 of 30 examples, and it needs at least 2: one to train on and "
        "one to validate with."
    )
