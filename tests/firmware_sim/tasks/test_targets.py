"""Targets are converted exactly, or refused with the first bad row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_sim.bundle.target import Target
from firmware_sim.errors import TaskError
from firmware_sim.tasks.targets import as_target, as_targets

FOUR = Target("class", (), 4)
TWO_NUMBERS = Target("numbers", (2,))
POSITIONS = Target("class_per_position", (3,), 4)


def refusal(values: Any, target: Target) -> str:
    with pytest.raises(TaskError) as caught:
        as_targets(np.asarray(values), target, name="y", source="d.npz")
    return str(caught.value)


def taken(values: Any, target: Target) -> Any:
    return as_targets(np.asarray(values), target, name="y", source="d.npz")


@given(st.lists(st.integers(-3, 9), min_size=1, max_size=30), st.sampled_from("hilq"))
def test_classes_pass_or_the_first_outside_is_named(labels: list[int], dtype: str) -> None:
    values = np.array(labels, dtype)
    bad = [row for row, label in enumerate(labels) if not 0 <= label < 4]
    if bad:
        first = bad[0]
        assert refusal(values, FOUR) == (
            f"row {first} of y in d.npz is {labels[first]}; the branch's classes are 0 to 3."
        )
    else:
        found = taken(values, FOUR)
        assert (found.dtype, found.tolist()) == (np.int32, labels)


@pytest.mark.parametrize(
    ("values", "target", "sentence"),
    [
        ([1, 2, 3, 4], FOUR, "row 3 of y in d.npz is 4; the branch's classes are 0 to 3."),
        ([10, 11, 12, 13], FOUR, "row 0 of y in d.npz is 10; the branch's classes are 0 to 3."),
        ([2**63], FOUR,
         "row 0 of y in d.npz is 9223372036854775808; the branch's classes are 0 to 3."),
        ([2**31], Target("class"),
         "row 0 of y in d.npz is 2147483648; the branch's classes are 0 to 2147483647."),
        ([1.0, 2.0], FOUR, "d.npz holds y as float64[2]; the branch takes int32[2]."),
        (["a"], FOUR, "d.npz holds y as <U1[1]; the branch takes int32[1]."),
        ([[1], [2]], FOUR, "d.npz holds y as int64[2, 1]; the branch takes int32[2]."),
        (1, FOUR, "d.npz holds y as int64[]; the branch takes int32[0]."),
        ([[1, 2], [3, np.nan]], TWO_NUMBERS,
         "row 1 of y in d.npz is nan; a target is a finite number."),
        ([[1, 2], [-np.inf, 0]], TWO_NUMBERS,
         "row 1 of y in d.npz is -inf; a target is a finite number."),
        ([[1e39, 2]], TWO_NUMBERS,
         "row 0 of y in d.npz is 1e+39; a target is a finite number."),
        ([1, 2], TWO_NUMBERS, "d.npz holds y as int64[2]; the branch takes float32[2, 2]."),
        ([[0, 1, 2], [3, -1, -2]], POSITIONS,
         "row 1 of y in d.npz is -2; the branch's classes are -1 (does not count), 0 to 3."),
        ([0, 1, 2], POSITIONS, "d.npz holds y as int64[3]; the branch takes int32[3, 3]."),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_is_one_sentence(values: Any, target: Target, sentence: str) -> None:
    assert refusal(values, target) == sentence


def test_what_fits_is_converted() -> None:
    one = taken([1, 2.5], Target("numbers", (1,)))
    assert (one.dtype, one.tolist()) == (np.float32, [[1.0], [2.5]])
    assert taken([True, False], FOUR).tolist() == [1, 0]
    masked = taken([[0, -1, 3]], POSITIONS)
    assert (masked.dtype, masked.tolist()) == (np.int32, [[0, -1, 3]])
    kept = np.array([0, 1], np.int32)
    assert taken(kept, FOUR) is kept, "what is right already is not copied"


def test_one_example_is_checked_alike() -> None:
    found = as_target(3, FOUR)
    assert (found.dtype, found.shape, int(found)) == (np.int32, (), 3)
    assert as_target(0.5, Target("numbers", (1,))).tolist() == [0.5]
    assert as_target([0.5, 1], TWO_NUMBERS).dtype == np.float32
    for value, target, sentence in (
        (4, FOUR, "the target of an example is 4; the branch's classes are 0 to 3."),
        ("warm", FOUR, "the target of an example is <U4[]; the branch takes int32[]."),
        (None, FOUR, "the target of an example is object[]; the branch takes int32[]."),
        ([1, np.nan], TWO_NUMBERS, "the target of an example is nan; a target is a finite number."),
        (
            [1.0],
            TWO_NUMBERS,
            "the target of an example is float64[1]; the branch takes float32[2].",
        ),
    ):
        with pytest.raises(TaskError) as caught:
            as_target(value, target)
        assert str(caught.value) == sentence
