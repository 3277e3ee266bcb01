"""Windows are the slices that numpy would take of all samples at once."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_sim.sources.decoding.windows import Window, Windows, label_of
from firmware_sim.tensor_spec import Array


def windows_of(x: Array, y: Array, windows: Windows) -> list[Window]:
    found = (windows.add(sample, label) for sample, label in zip(x, y, strict=True))
    return [window for window in found if window is not None]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 40),
    length=st.integers(1, 12),
    hop=st.integers(1, 15),
    channels=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_window_is_a_slice(
    count: int, length: int, hop: int, channels: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, channels)), rng.integers(0, 3, (count, 1)).astype(float)
    starts = range(0, count - length + 1, hop)
    for rule in ("last", "majority", "mean", "each"):
        found = windows_of(x, y, Windows(length, hop, channels, label_of=rule))
        assert len(found) == len(starts)
        for start, window in zip(starts, found, strict=True):
            np.testing.assert_array_equal(window.x, x[start : start + length])
            labels = y[start : start + length]
            assert window.y is not None
            if rule == "last":
                assert window.y == labels[-1]
            elif rule == "majority":
                counts = Counter(labels[:, 0])
                most = max(counts.values())
                ties = [label for label in counts if counts[label] == most]
                assert window.y[0] in ties
            elif rule == "mean":
                np.testing.assert_allclose(window.y, labels.mean(axis=0))
            else:
                np.testing.assert_array_equal(window.y, labels)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999))
def test_missing_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 2))
    x[rng.random(x.shape) < 0.2] = np.nan
    none = np.full((20, 1), np.nan)

    for window in windows_of(x, none, Windows(4, 2, 2)):
        assert window.missing == np.isnan(window.x).sum()
        assert window.y is None
    assert [w.missing for w in windows_of(x, none, Windows(4, 4, 2))] == [
        np.isnan(x[start : start + 4]).sum() for start in range(0, 20, 4)
    ]

    (filled,) = windows_of(x, none, Windows(20, 20, 2, missing=-3.0))
    np.testing.assert_array_equal(filled.x, np.where(np.isnan(x), -3.0, x))

    held = x.copy()
    for row in range(1, 20):
        held[row] = np.where(np.isnan(held[row]), held[row - 1], held[row])
    (found,) = windows_of(x, none, Windows(20, 20, 2, missing="hold"))
    np.testing.assert_array_equal(found.x, held)


def test_the_label_of_a_window_with_labels_missing() -> None:
    labels = np.array([[1.0], [2.0], [2.0], [1.0], [np.nan]])
    assert label_of(labels, "last") is None
    assert label_of(labels, "mean") is None
    assert label_of(labels, "each") is None
    assert label_of(labels, "majority") == 1  # of two that are as frequent, the latest
    assert label_of(np.full((3, 1), np.nan), "majority") is None


def test_after_a_restart_no_window_holds_what_came_before() -> None:
    windows = Windows(3, 1, 1)
    samples = [np.array([float(number)]) for number in range(10)]
    for sample in samples[:4]:
        windows.add(sample)
    windows.restart()
    assert windows.add(samples[4]) is None
    assert windows.add(samples[5]) is None
    window = windows.add(samples[6])
    assert window is not None
    assert window.x[:, 0].tolist() == [4, 5, 6]
