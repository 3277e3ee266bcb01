"""Normalisation, compared with numpy over all values at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_sim.errors import SourceError, TaskError
from firmware_sim.normalisation import (
    Learnt,
    Moments,
    Normalisation,
    Unlearnt,
    learnt_in,
    normaliser,
)
from firmware_sim.tensor_spec import TensorSpec

X = TensorSpec((4, 3), np.dtype(np.float32))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), parts=st.integers(1, 6), offset=st.sampled_from((0.0, 1e6, -3e4)))
def test_moments_in_parts_are_those_of_all(seed: int, parts: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    blocks = [
        rng.normal(offset, rng.uniform(0.1, 9, 3), (rng.integers(1, 5), 4, 3)) for _ in range(parts)
    ]
    moments = Moments()
    for block in blocks:
        moments = moments.with_more(block)
    everything = np.concatenate(blocks).reshape(-1, 3)
    assert moments.count == len(everything)
    found = moments.normalisation
    np.testing.assert_allclose(found.mean, everything.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.deviation, everything.std(axis=0), rtol=1e-7)


def test_applied_to_one_example_and_to_many() -> None:
    x = np.random.default_rng(0).normal(5, 3, (50, 4, 3)).astype(np.float32)
    found = Normalisation.of(x)
    many = found.apply(x)
    assert many.dtype == np.float32
    np.testing.assert_allclose(many.reshape(-1, 3).mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(many.reshape(-1, 3).std(axis=0), 1, atol=1e-5)
    np.testing.assert_array_equal(many[7], found.apply(x[7]))


def test_a_channel_that_never_changes() -> None:
    x = np.ones((9, 2), np.float32)
    x[:, 0] = 0.1
    found = Normalisation.of(x)
    assert found.deviation == (1, 1)
    np.testing.assert_allclose(found.apply(x), 0, atol=1e-7)


def test_what_is_learnt_survives_a_restart() -> None:
    rng = np.random.default_rng(1)
    windows = rng.normal(2, 4, (20, 4, 3)).astype(np.float32)
    learnt, again = normaliser("learn", X, None), normaliser("learn", X, None)
    assert isinstance(learnt, Learnt)
    assert isinstance(again, Learnt)
    np.testing.assert_array_equal(learnt.apply(windows[0]), windows[0])  # nothing learnt yet
    for window in windows[:10]:
        learnt.take(learnt.after(window))
    again.restore(learnt.state())
    for window in windows[10:]:
        learnt.take(learnt.after(window))
        again.take(again.after(window))
    np.testing.assert_array_equal(again.apply(windows[0]), learnt.apply(windows[0]))
    np.testing.assert_allclose(
        again.apply(windows),
        (windows - windows.mean((0, 1))) / windows.std((0, 1)),
        rtol=1e-4,
        atol=1e-5,
    )
    empty = Learnt(3)
    empty.restore(Learnt(3).state())
    np.testing.assert_array_equal(empty.apply(windows), windows)


def test_which_one_a_device_has() -> None:
    fixed = Normalisation((1.0,) * 3, (2.0,) * 3)
    ones = np.full((4, 3), 5, np.float32)
    assert normaliser("bundle", X, fixed).apply(ones).tolist() == [[2] * 3] * 4
    assert normaliser("bundle", X, None).apply(ones) is ones
    assert normaliser("none", X, fixed).apply(ones) is ones
    with pytest.raises(SourceError, match=r"uint8\[4, 3\]: only numbers with fractions"):
        normaliser("learn", TensorSpec((4, 3), np.dtype(np.uint8)), None)


def test_states_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TaskError, match="the device had learnt"):
        Unlearnt().restore(Learnt(3).state())
    with pytest.raises(TaskError, match="without a learnt normalisation"):
        Learnt(3).restore({})
    good = Learnt(3).state()
    for name, wrong in (
        ("mean", np.zeros(2)),
        ("mean", np.full(3, np.nan)),
        ("squares", np.full(3, -1.0)),
        ("observed", np.array(-1)),
        ("observed", np.array(1.5)),
    ):
        with pytest.raises(TaskError, match="is damaged"):
            Learnt(3).restore({**good, name: wrong})


def test_what_a_checkpoint_has_learnt() -> None:
    x = np.random.default_rng(0).normal(5, 3, (40, 2)).astype(np.float32)
    learnt = Learnt(2)
    assert learnt_in({**learnt.state(), "seed": np.array(1)}) is None  # nothing yet
    for row in x:
        learnt.take(learnt.after(row))
    found = learnt_in({**learnt.state(), "seed": np.array(1)})
    assert found is not None
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.deviation, x.std(0), rtol=1e-5)
    assert learnt_in({"seed": np.array(1)}) is None
