"""Median, trimmed mean and multi-Krum against literal implementations, and against liars."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.merging import robust
from broker.merging.merge import MergeRule, tally
from broker.protocol.slice import Tensors

modest = settings(deadline=None, max_examples=40)
Rows = npt.NDArray[np.float32]


@st.composite
def stacked(draw: st.DrawFn, fewest: int, *, whole: bool = False) -> Rows:
    """[K, n] with ties (whole numbers) or values of many magnitudes."""
    devices, columns = draw(st.integers(fewest, fewest + 6)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if whole or draw(st.booleans()):
        return rng.integers(-3, 4, size=(devices, columns)).astype(np.float32)
    magnitudes = 10 ** rng.uniform(-9, 9, size=columns)
    return (rng.normal(size=(devices, columns)) * magnitudes).astype(np.float32)


def literal_krum(rows: Rows, liars: int) -> list[int]:
    """Blanchard et al. 2017, word by word, on float64 differences."""
    wide = rows.astype(np.float64)
    scores = []
    for i, mine in enumerate(wide):
        apart = sorted(np.sum((mine - other) ** 2) for j, other in enumerate(wide) if j != i)
        scores.append(sum(apart[: len(wide) - liars - 2]))
    return sorted(sorted(range(len(wide)), key=lambda i: scores[i])[: len(wide) - liars])


def merged_by(rule: MergeRule, updates: dict[str, Tensors]) -> Tensors:
    this_round = tally(rule)
    for device, tensors in updates.items():
        this_round.add(device, tensors, samples=1)
    return this_round.merged()[0]


@given(rows=stacked(3))
@modest
def test_median_is_the_middle(rows: Rows) -> None:
    half = len(rows) // 2
    expected = []
    for column in rows.T:
        ordered = sorted(float(value) for value in column)
        middle = ordered[half : half + 1] if len(rows) % 2 else ordered[half - 1 : half + 1]
        expected.append(sum(middle) / len(middle))
    np.testing.assert_array_equal(robust.median(rows), np.asarray(expected, np.float32))


def test_the_two_middle_values_may_be_as_large_as_they_can() -> None:
    rows = np.asarray([[3e38], [3.2e38], [3.4e38], [0]], np.float32)
    np.testing.assert_allclose(robust.median(rows), [3.1e38], rtol=1e-6)


@given(liars=st.integers(1, 3), data=st.data())
@modest
def test_trimmed_mean_drops_both_ends(liars: int, data: st.DataObject) -> None:
    rows = data.draw(stacked(2 * liars + 1))
    expected = []
    for column in rows.T:
        kept = sorted(float(value) for value in column)[liars : len(rows) - liars]
        expected.append(sum(kept) / len(kept))
    scale = np.abs(rows).max(axis=0)
    difference = np.abs(robust.trimmed_mean(rows, liars) - np.asarray(expected))
    assert (difference <= 1e-7 * scale).all()


@given(liars=st.integers(1, 3), data=st.data())
@modest
def test_krum_chooses_literally(liars: int, data: st.DataObject) -> None:
    """Whole numbers make exact ties, which the first row must win."""
    rows = data.draw(stacked(2 * liars + 3))
    squares = robust.squared_distances(list(rows))
    literal = np.sum((rows[:, None, :].astype(np.float64) - rows[None]) ** 2, axis=-1)
    np.testing.assert_allclose(squares, literal, rtol=1e-9, atol=1e-12 * literal.max(initial=0))
    assert robust.krum_choice(squares, liars).tolist() == literal_krum(rows, liars)


@pytest.mark.parametrize("order", ["abcde", "edcba"])
def test_of_equal_scores_the_first_name_wins(order: str) -> None:
    """-2 and 2 are equally far from their neighbours; e goes, whoever comes first."""
    values = dict(zip("abcde", [-2.0, -1.0, 0.0, 1.0, 2.0], strict=True))
    updates: dict[str, Tensors] = {d: {"w": np.asarray([values[d]], np.float32)} for d in order}
    merged = merged_by(MergeRule("multi-krum", byzantine=1), updates)
    np.testing.assert_array_equal(merged["w"], [-0.5])


def test_krum_judges_whole_updates_of_devices_with_the_same_tensors() -> None:
    """Everyone holds the stem, five powerful devices also head and tail; p0 lies in its tail.

    Head and tail have the same holders and are judged together, so p0's honest head is dropped
    with its tail. Its stem is judged apart, among those of all seven devices.
    """
    rng = np.random.default_rng(0)
    updates: dict[str, Tensors] = {}
    for device in ("w0", "w1", "p0", "p1", "p2", "p3", "p4"):
        updates[device] = {"stem": rng.normal(size=30).astype(np.float32)}
        if device.startswith("p"):
            updates[device] |= {n: rng.normal(size=5).astype(np.float32) for n in ("head", "tail")}
    updates["p0"]["tail"] += 1e3
    merged = merged_by(MergeRule("multi-krum", byzantine=1), updates)
    for name in ("head", "tail"):
        honest = np.mean([updates[f"p{k}"][name] for k in range(1, 5)], axis=0, dtype=np.float64)
        np.testing.assert_allclose(merged[name], honest, rtol=1e-6)
    names = sorted(updates)
    chosen = literal_krum(np.stack([updates[name]["stem"] for name in names]), 1)
    stems = np.mean([updates[names[k]]["stem"] for k in chosen], axis=0, dtype=np.float64)
    np.testing.assert_allclose(merged["stem"], stems, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "multi-krum"])
@pytest.mark.parametrize("value", [1e30, -1e30, 3.4e38])
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=10)
def test_liars_cannot_leave_the_honest_range(name: str, value: float, seed: int) -> None:
    """Two liars among seven, wherever they stand; Krum's mean is that of the five honest ones."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(7, 20)).astype(np.float32)
    liars = rng.choice(7, size=2, replace=False)
    rows[liars] = np.float32(value)
    honest = np.delete(rows, liars, axis=0)
    rule = MergeRule(name, byzantine=0 if name == "median" else 2)
    merged = merged_by(rule, {f"d{k}": {"w": row} for k, row in enumerate(rows)})["w"]
    assert (merged >= honest.min(axis=0)).all()
    assert (merged <= honest.max(axis=0)).all()
    if name == "multi-krum":
        np.testing.assert_allclose(merged, honest.mean(axis=0, dtype=np.float64), rtol=1e-5)


def test_krum_never_picks_any_pair_of_liars() -> None:
    rng = np.random.default_rng(1)
    honest = rng.normal(size=(7, 50)).astype(np.float32)
    for liars in combinations(range(7), 2):
        rows = honest.copy()
        rows[liars[0]] += 1e30
        rows[liars[1]] -= 50  # far nearer than the other, and yet no neighbour of the honest
        chosen = robust.krum_choice(robust.squared_distances(list(rows)), 2)
        assert chosen.tolist() == [k for k in range(7) if k not in liars]


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "multi-krum"])
def test_sample_counts_are_ignored(name: str) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(5, 8)).astype(np.float32)
    rule = MergeRule(name, byzantine=0 if name == "median" else 1)
    results = []
    for counts in ([1] * 5, [1, 10, 100, 1000, 10**6]):
        this_round = tally(rule)
        for k, row in enumerate(rows):
            this_round.add(str(k), {"w": row}, counts[k])
        results.append(this_round.merged()[0]["w"])
    np.testing.assert_array_equal(results[0], results[1])


def test_blocks_are_bounded_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(7, 1000)).astype(np.float32)
    whole = {name: robust.by_blocks(rule, list(rows)) for name, rule in COLUMN_RULES.items()}
    squares = robust.squared_distances(list(rows))
    monkeypatch.setattr(robust, "BLOCK", 7 * 64 + 3)
    parts = list(robust.blocks(list(rows)))
    assert [part.shape for part in parts] == [(7, 64)] * 15 + [(7, 40)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), rows)
    for name, rule in COLUMN_RULES.items():
        np.testing.assert_array_equal(robust.by_blocks(rule, list(rows)), whole[name])
    np.testing.assert_allclose(robust.squared_distances(list(rows)), squares, rtol=1e-12, atol=1e-9)
    monkeypatch.setattr(robust, "BLOCK", 1)  # more devices than a block holds: column by column
    assert [part.shape for part in robust.blocks(list(rows[:, :3]))] == [(7, 1)] * 3


COLUMN_RULES = {
    "median": robust.median,
    "trimmed mean": lambda rows: robust.trimmed_mean(rows, 2),
    "mean": robust.mean,
}
