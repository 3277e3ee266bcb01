"""What each policy has kept, whatever came in whatever order."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_sim.store.retention import (
    HELD_OUT_PART,
    POLICIES,
    Held,
    Newcomer,
    is_held_out,
)

CAPACITIES = st.integers(1, 6)


def kept(policy: str, newcomers: list[Newcomer], capacity: int) -> list[Newcomer]:
    """Those that are there after all have asked for a place."""
    held: list[Newcomer] = []
    for newcomer in newcomers:
        if len(held) < capacity:
            held.append(newcomer)
            continue
        arrays = Held(
            np.array([h.arrival for h in held]),
            np.array([h.label for h in held], np.int32),
            np.array([h.loss for h in held], np.float32),
        )
        victim = POLICIES[policy](arrays, newcomer, 7)
        if victim is not None:
            held[victim] = newcomer
    return held


@given(st.permutations(range(12)), CAPACITIES)
def test_the_newest_stay_in_whatever_order_their_labels_come(
    arrivals: list[int], capacity: int
) -> None:
    found = kept("newest", [Newcomer(a) for a in arrivals], capacity)
    assert sorted(n.arrival for n in found) == list(range(12 - capacity, 12))


@given(st.lists(st.floats(0, 100, width=32), min_size=6, unique=True), CAPACITIES)
def test_the_hardest_stay(losses: list[float], capacity: int) -> None:
    newcomers = [Newcomer(a, loss=loss) for a, loss in enumerate(losses)]
    found = kept("hardest", newcomers, capacity)
    assert sorted(n.loss for n in found) == sorted(losses)[-capacity:]


def test_one_whose_loss_is_unknown_is_taken_for_the_hardest() -> None:
    found = kept("hardest", [Newcomer(1, loss=9.0), Newcomer(2), Newcomer(3, loss=8.0)], 1)
    assert [n.arrival for n in found] == [2]
    assert [n.arrival for n in kept("hardest", [Newcomer(1), Newcomer(2)], 1)] == [2]


@given(st.lists(st.integers(0, 4), max_size=60), CAPACITIES)
def test_classes_are_balanced_and_the_newest_of_each_stay(labels: list[int], capacity: int) -> None:
    newcomers = [Newcomer(a, label) for a, label in enumerate(labels)]
    found = kept("balanced", newcomers, capacity)
    came, counts = Counter(labels), Counter(n.label for n in found)
    assert len(found) == min(capacity, len(labels))
    most = max(counts.values(), default=0)
    for label, number in came.items():  # a class has fewer than another only if fewer came
        assert counts[label] >= min(number, most - 1)
    for label in counts:
        of_class = [n.arrival for n in newcomers if n.label == label]
        assert {n.arrival for n in found if n.label == label} == set(of_class[-counts[label] :])


def test_a_reservoir_is_a_uniform_sample_of_all_that_came() -> None:
    """Each of 40 stays with probability 10 / 40; 200 draws, five standard errors."""
    came = [Newcomer(a, number=a + 1) for a in range(40)]
    times: Counter[int] = Counter()
    for seed in range(200):
        held = came[:10]
        for newcomer in came[10:]:
            arrays = Held(np.zeros(10), np.zeros(10), np.zeros(10))
            victim = POLICIES["reservoir"](arrays, newcomer, seed)
            if victim is not None:
                held[victim] = newcomer
        times.update(n.arrival for n in held)
    error = math.sqrt(200 * 0.25 * 0.75)
    assert all(abs(times[a] - 50) < 5 * error for a in range(40))
    assert times.total() == 2000


@pytest.mark.parametrize("seed", [0, 1])
def test_a_part_is_held_out_and_always_the_same_one(seed: int) -> None:
    first = [key for key in range(4000) if is_held_out(key, seed)]
    assert first == [key for key in range(4000) if is_held_out(key, seed)]
    error = math.sqrt(4000 * HELD_OUT_PART * (1 - HELD_OUT_PART))
    assert abs(len(first) - 4000 * HELD_OUT_PART) < 4 * error
    assert first != [key for key in range(4000) if is_held_out(key, 1 - seed)]
