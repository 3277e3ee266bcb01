"""Every tensor is merged across the devices that hold it: formulas, order, clipping, staleness."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import MergeRefused
from broker.merging.bounds import UNBOUNDED, Bounds, Size, size_of
from broker.merging.merge import MERGES, MergeRule, Tally, tally
from broker.merging.staleness import STALENESS, staleness_weight
from broker.merging.vectors import scaled
from broker.protocol.norms import squared_norms
from broker.protocol.slice import Tensors

modest = settings(deadline=None, max_examples=30)
# f = 1 for the rules that take a number of liars; krum then needs five devices.
LIARS = {name: int(name in ("trimmed-mean", "multi-krum")) for name in MERGES}
RULES = [MergeRule(name, LIARS[name], UNBOUNDED) for name in MERGES]  # the formulas alone
BOUNDED = [MergeRule(name, LIARS[name]) for name in MERGES]  # as an aggregator has them
SHAPES = {"stem/kernel": (3, 4), "stem/bias": (4,), "head/kernel": (5, 2), "gain": (), "none": (0,)}


@dataclass(frozen=True)
class Sent:
    """One device's update."""

    tensors: Tensors
    samples: int


def draw(rng: np.random.Generator, names: Sequence[str], samples: int, scale: float = 1.0) -> Sent:
    """float32 values of many magnitudes."""
    tensors = {
        name: np.asarray(
            scale * rng.normal(size=SHAPES[name]) * 10 ** rng.uniform(-6, 6, size=SHAPES[name]),
            np.float32,
        )
        for name in names
    }
    return Sent(tensors, samples)


def mixed_fleet(seed: int) -> dict[str, Sent]:
    """Eleven devices: five share the stem alone, six also a head; counts from 1 to a million."""
    rng = np.random.default_rng(seed)
    stem, whole = ["stem/kernel", "stem/bias", "gain", "none"], list(SHAPES)
    counts = rng.integers(1, 10**6, size=11)
    return {
        f"device-{k}": draw(rng, stem if k < 5 else whole, int(count))
        for k, count in enumerate(counts)
    }


def merge(rule: MergeRule, fleet: Mapping[str, Sent]) -> tuple[Tensors, tuple[str, ...]]:
    this_round = tally(rule)
    for device, sent in fleet.items():
        this_round.add(device, sent.tensors, sent.samples)
    return this_round.merged()


def norm_of(tensors: Tensors) -> float:
    return math.sqrt(sum(squared_norms(tensors).values()))


def clipping(norm: float) -> Bounds:
    """Clips to a norm that is given, and does nothing else."""
    return replace(UNBOUNDED, clip_norm=norm)


def holders(fleet: Mapping[str, Sent], name: str) -> list[Sent]:
    return [sent for sent in fleet.values() if name in sent.tensors]


def plain(rule: str, sent: Sequence[Sent], name: str) -> npt.NDArray[np.float64]:
    """The formula, literally, in float64."""
    changes = [one.tensors[name].astype(np.float64) for one in sent]
    if rule == "sum":
        return np.asarray(np.sum(changes, axis=0))
    if rule == "mean":
        return np.asarray(np.sum(changes, axis=0) / len(sent))
    counted = sum(one.samples for one in sent)
    weighted = [one.samples / counted * c for one, c in zip(sent, changes, strict=True)]
    return np.asarray(np.sum(weighted, axis=0))


def magnitude(sent: Sequence[Sent], name: str) -> npt.NDArray[np.float64]:
    """Σ_k |Δ_k|: what rounding errors are measured against when terms cancel."""
    sizes = [np.abs(one.tensors[name]).astype(np.float64) for one in sent]
    return np.asarray(np.sum(sizes, axis=0))


# Appendix A: with α_k = n_k / Σ n_j the merged gradient is the gradient over all data.


def gradient(
    theta: npt.NDArray[np.float64], x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """∇ of the mean logistic loss over the rows of x."""
    predicted = 1 / (1 + np.exp(-x @ theta))
    return np.asarray(x.T @ (predicted - y) / len(y))


def test_samples_merge_to_the_gradient_over_all_data() -> None:
    """Two weak devices hold the first three weights, three powerful ones all eight."""
    rng = np.random.default_rng(7)
    theta = rng.normal(size=8)
    fleet: dict[str, Sent] = {}
    data = {}
    for k, count in enumerate([3, 500, 1, 40, 2000]):
        x, y = rng.normal(k, 1 + k, size=(count, 8)), rng.integers(0, 2, size=count).astype(float)
        powerful = k >= 2
        g = gradient(theta[: 8 if powerful else 3], x[:, : 8 if powerful else 3], y)
        tensors = {"stem": g[:3].astype(np.float32)}
        if powerful:
            tensors["tail"] = g[3:].astype(np.float32)
        fleet[f"device-{k}"], data[k] = Sent(tensors, count), (x, y)
    merged, _ = merge(MergeRule("samples", bounds=UNBOUNDED), fleet)

    # The tail is held by a subset: the gradient over that subset's data, and nobody else's.
    x, y = (np.concatenate([data[k][part] for k in (2, 3, 4)]) for part in (0, 1))
    over_subset = gradient(theta, x, y)
    np.testing.assert_allclose(merged["tail"], over_subset[3:], rtol=1e-6, atol=1e-6)

    # The stem: the mean loss over the union, where each example goes through its device's branch.
    weak_x, weak_y = (np.concatenate([data[k][part] for k in (0, 1)]) for part in (0, 1))
    over_weak = gradient(theta[:3], weak_x[:, :3], weak_y)
    union = (503 * over_weak + 2041 * over_subset[:3]) / 2544
    np.testing.assert_allclose(merged["stem"], union, rtol=1e-6, atol=1e-6)
    assert (
        np.abs(merged["stem"] - merge(MergeRule("mean", bounds=UNBOUNDED), fleet)[0]["stem"]).max()
        > 0.01
    )


def test_samples_of_one_branch_merge_to_one_gradient() -> None:
    """All devices hold everything: the merge is one call of `gradient` on the united data."""
    rng = np.random.default_rng(8)
    theta = rng.normal(size=6)
    fleet, xs, ys = {}, [], []
    for k, count in enumerate([1, 17, 300, 4]):
        x, y = rng.normal(k, 1, size=(count, 6)), rng.integers(0, 2, size=count).astype(float)
        fleet[str(k)] = Sent({"w": gradient(theta, x, y).astype(np.float32)}, count)
        xs.append(x)
        ys.append(y)
    merged, held_back = merge(MergeRule("samples", bounds=UNBOUNDED), fleet)
    expected = gradient(theta, np.concatenate(xs), np.concatenate(ys))
    np.testing.assert_allclose(merged["w"], expected, rtol=1e-6, atol=1e-6)
    assert held_back == ()


# The formulas.


@pytest.mark.parametrize("rule", ["sum", "mean", "samples"])
@given(seed=st.integers(0, 2**32 - 1))
@modest
def test_streaming_rules_are_their_formulas(rule: str, seed: int) -> None:
    fleet = mixed_fleet(seed)
    merged, held_back = merge(MergeRule(rule, bounds=UNBOUNDED), fleet)
    assert list(merged) == sorted(SHAPES)
    assert held_back == ()
    for name, change in merged.items():
        assert (change.dtype, change.shape) == (np.dtype(np.float32), SHAPES[name])
        expected = plain(rule, holders(fleet, name), name)
        np.testing.assert_allclose(change, expected, rtol=1e-6, atol=0)


def test_products_are_exact_when_terms_cancel() -> None:
    """3·x - 5·(3x/5) leaves what the rounding of the updates themselves left, and 7·small.

    With products or totals in float32 that would drown in noise of about 1e-7 · 3e9.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(scale=1e9, size=1000).astype(np.float32)
    y = (-3 * x.astype(np.float64) / 5).astype(np.float32)
    small = rng.normal(size=1000).astype(np.float32)
    fleet = {"a": Sent({"w": x}, 3), "b": Sent({"w": y}, 5), "c": Sent({"w": small}, 7)}
    merged, _ = merge(MergeRule("samples", bounds=UNBOUNDED), fleet)
    expected = (3 * x.astype(np.float64) + 5 * y.astype(np.float64) + 7 * small) / 15
    assert np.abs(expected).max() < 1e3
    np.testing.assert_allclose(merged["w"], expected, rtol=1e-6, atol=1e-5)


def test_tensors_longer_than_a_chunk_are_merged_to_the_end() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=300_001).astype(np.float32) for _ in range(2))
    fleet = {"a": Sent({"w": a}, 1), "b": Sent({"w": b}, 3)}
    expected = (a.astype(np.float64) + 3 * b.astype(np.float64)) / 4
    np.testing.assert_allclose(
        merge(MergeRule("samples", bounds=UNBOUNDED), fleet)[0]["w"], expected, rtol=1e-6
    )
    both = np.concatenate([a, b]).astype(np.float64)
    assert norm_of({"a": a, "b": b}) == pytest.approx(np.sqrt(np.sum(both**2)), rel=1e-6)


@pytest.mark.parametrize("rule", [*RULES, *BOUNDED], ids=repr)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
@modest
def test_the_order_of_arrival_does_not_matter(
    rule: MergeRule, seed: int, data: st.DataObject
) -> None:
    fleet = mixed_fleet(seed)
    order = data.draw(st.permutations(sorted(fleet)))
    first, first_held = merge(rule, fleet)
    second, second_held = merge(rule, {device: fleet[device] for device in order})
    assert list(first) == list(second) == sorted(SHAPES)
    assert first_held == second_held == ()
    for name, change in first.items():
        if rule.is_robust:
            np.testing.assert_array_equal(second[name], change)
        else:
            atol = 1e-12 * magnitude(holders(fleet, name), name).max(initial=0)
            np.testing.assert_allclose(second[name], change, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("rule", [*RULES, *BOUNDED], ids=repr)
def test_merging_twice_gives_the_same_and_later_updates_count(rule: MergeRule) -> None:
    fleet = mixed_fleet(3)
    this_round = tally(rule)
    for device, sent in fleet.items():
        this_round.add(device, sent.tensors, sent.samples)
    once, again = this_round.merged()[0], this_round.merged()[0]
    for name in once:
        np.testing.assert_array_equal(once[name], again[name])
        assert once[name].flags.writeable
    for k in range(12):
        this_round.add(f"late-{k}", {"gain": np.full((), 1e7, np.float32)}, 10**6)
    assert this_round.merged()[0]["gain"] > once["gain"] + 1e5


# The arrays that are given.


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("bounds", [UNBOUNDED, clipping(1.0), Bounds()], ids=repr)
def test_updates_are_not_changed(rule: MergeRule, bounds: Bounds) -> None:
    """They may be read-only views of what came from the network, off alignment."""
    rule = replace(rule, bounds=bounds)
    rng = np.random.default_rng(4)
    values = [rng.normal(size=6).astype(np.float32) for _ in range(5)]
    expected, _ = merge(rule, {str(k): Sent({"w": v}, k + 1) for k, v in enumerate(values)})
    this_round = tally(rule)
    buffers = [bytearray(b"." + value.tobytes()) for value in values]
    for k, buffer in enumerate(buffers):
        view = np.frombuffer(buffer, np.float32, offset=1)
        view.flags.writeable = False
        assert not view.flags.aligned
        this_round.add(str(k), {"w": view}, k + 1)
    np.testing.assert_array_equal(this_round.merged()[0]["w"], expected["w"])
    assert [bytes(buffer[1:]) for buffer in buffers] == [value.tobytes() for value in values]


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1.0, 1e15, 1e30])
@pytest.mark.parametrize("size", [0, 1, 8_191, 8_193, 20_000])
def test_norms_are_right_for_numbers_whose_squares_do_not_fit(scale: float, size: int) -> None:
    values = (np.random.default_rng(size).normal(size=size) * scale).astype(np.float32)
    wanted = math.fsum(float(v) ** 2 for v in values)
    assert squared_norms({"w": values})["w"] == pytest.approx(wanted, rel=1e-6)


def test_transposed_arrays_merge_by_position() -> None:
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    merged, _ = merge(
        MergeRule("sum", bounds=UNBOUNDED),
        {"a": Sent({"w": grid.T}, 1), "b": Sent({"w": grid.T}, 1)},
    )
    np.testing.assert_array_equal(merged["w"], 2 * grid.T)


@pytest.mark.parametrize("name", ["sum", "median"])
def test_a_wrong_update_is_refused_and_counts_nothing(name: str) -> None:
    def one() -> Tally:
        this_round = tally(MergeRule(name))
        for device in "abc":
            this_round.add(device, {"v": np.ones(2, np.float32), "w": np.ones(3, np.float32)}, 5)
        return this_round

    expected = one().merged()
    this_round = one()
    good = {"v": np.full(2, 9, np.float32)}
    with pytest.raises(ValueError, match="device 'a' is already counted in this round"):
        this_round.add("a", good, 5)
    with pytest.raises(ValueError, match="device 'd' trained on 0 samples"):
        this_round.add("d", good, 0)
    with pytest.raises(ValueError, match=r"'d' sent tensor 'w' with shape \(1,\), others .*\(3,\)"):
        this_round.add("d", good | {"w": np.ones(1, np.float32)}, 5)
    for merged, before in zip(this_round.merged()[0].values(), expected[0].values(), strict=True):
        np.testing.assert_array_equal(merged, before)


def test_numpys_own_setting_is_put_back() -> None:
    before = np.setbufsize(4096)
    try:
        merge(MergeRule("sum", bounds=UNBOUNDED), mixed_fleet(0))
        with pytest.raises(KeyError):
            scaled({"w": np.ones(2, np.float32)}, {})
        assert np.getbufsize() == 4096
    finally:
        np.setbufsize(before)


# Clipping, scaling, staleness.


@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(-20, 20).map(lambda exponent: 10.0**exponent),
    clip_norm=st.floats(-3, 3).map(lambda exponent: 10.0**exponent),
)
@modest
def test_clipping_shortens_without_turning(seed: int, scale: float, clip_norm: float) -> None:
    tensors = draw(np.random.default_rng(seed), list(SHAPES), 1, scale).tensors
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    norm = norm_of(tensors)
    wide = np.concatenate([t.astype(np.float64).reshape(-1) for t in tensors.values()])
    assert norm == pytest.approx(np.linalg.norm(wide), rel=1e-6)
    size = size_of(squared_norms(tensors), 1, clipping(clip_norm))
    assert (size.factor < 1) == (norm > clip_norm)
    result, _ = merge(MergeRule("sum", bounds=clipping(clip_norm)), {"a": Sent(tensors, 1)})
    if norm > clip_norm:
        assert clip_norm * (1 - 1e-6) <= norm_of(result) <= clip_norm * (1 + 1e-6)
        assert math.sqrt(sum(size.squares.values())) == pytest.approx(clip_norm)
    for name, tensor in result.items():
        np.testing.assert_array_equal(tensors[name], before[name])
        expected = before[name].astype(np.float64) * min(1, clip_norm / norm)
        np.testing.assert_allclose(tensor, expected, rtol=1e-6, atol=1e-44)


def test_a_zero_update_and_no_limit_are_left_alone() -> None:
    zero: Tensors = {"w": np.zeros(3, np.float32)}
    assert squared_norms(zero) == {"w": 0.0}
    assert squared_norms({}) == {}
    assert size_of(squared_norms(zero), 1, clipping(1e-3)) == Size(1, 1.0, {"w": 0.0})
    large: Tensors = {"w": np.full(3, 3e38, np.float32)}
    assert size_of(squared_norms(large), 1, UNBOUNDED) == Size(1)
    merged, _ = merge(MergeRule("sum", bounds=clipping(1e-3)), {"a": Sent(large, 1)})
    assert norm_of(merged) == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_tally_clips_each_update_by_itself(rule: MergeRule) -> None:
    rng = np.random.default_rng(5)
    fleet: dict[str, Sent] = {}
    for k in range(6):
        values = (10.0**-k * rng.normal(size=(2, 20))).astype(np.float32)
        fleet[str(k)] = Sent({"kernel": values[0], "bias": values[1]}, k + 1)
    limit = norm_of(fleet["3"].tensors)
    short = {
        device: Sent(scaled(sent.tensors, min(1, limit / norm_of(sent.tensors))), sent.samples)
        for device, sent in fleet.items()
    }
    this_round = tally(replace(rule, bounds=clipping(limit)))
    for device, sent in fleet.items():
        this_round.add(device, sent.tensors, sent.samples)
    merged, _ = this_round.merged()
    assert (this_round.clipped, this_round.bounded) == ({"0", "1", "2"}, set())
    expected, _ = merge(rule, short)
    for name, change in merged.items():
        np.testing.assert_allclose(change, expected[name], rtol=1e-6, atol=1e-7 * limit)


def test_scaling_weighs_all_tensors_or_each() -> None:
    tensors = {"a": np.asarray([1.0, -3e38], np.float32), "b": np.asarray(2.0, np.float32)}
    both = scaled(tensors, 0.5)
    np.testing.assert_array_equal(both["a"], np.asarray([0.5, -1.5e38], np.float32))
    assert (both["b"].shape, float(both["b"])) == ((), 1.0)
    each = scaled(tensors, {"a": 1.0, "b": 1e-44})
    np.testing.assert_array_equal(each["a"], tensors["a"])
    assert not np.shares_memory(each["a"], tensors["a"])
    # As a float32 this factor would be rounded to a multiple of 1.4e-45, a percent off.
    tiny = scaled({"w": np.asarray([3e38], np.float32)}, 1e-43)["w"]
    np.testing.assert_allclose(tiny, [3e-5], rtol=1e-6)


def test_staleness_weights() -> None:
    assert [staleness_weight("polynomial", s) for s in (0, 3, 99)] == pytest.approx([1, 0.5, 0.1])
    assert [staleness_weight("none", s) for s in (0, 3, 99)] == [1, 1, 1]
    assert STALENESS == ("polynomial", "none")
    with pytest.raises(ValueError, match="staleness 'linear' is unknown: choose one of poly"):
        staleness_weight("linear", 1)
    with pytest.raises(ValueError, match="cannot have staleness -1"):
        staleness_weight("none", -1)


# What is refused.


@pytest.mark.parametrize(
    ("rule", "fewest", "sentence"),
    [
        (MergeRule("sum"), 1, "merge 'sum' needs at least 1 devices, but there are 0."),
        (MergeRule("mean"), 1, "merge 'mean' needs at least 1 devices, but there are 0."),
        (MergeRule("samples"), 1, "merge 'samples' needs at least 1 devices, but there are 0."),
        (MergeRule("median"), 3, "merge 'median' needs at least 3 devices, but there are 2."),
        (
            MergeRule("trimmed-mean", byzantine=2),
            5,
            "merge 'trimmed-mean' with byzantine = 2 needs at least 5 devices, but there are 4.",
        ),
        (
            MergeRule("multi-krum", byzantine=2),
            7,
            "merge 'multi-krum' with byzantine = 2 needs at least 7 devices, but there are 6.",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, MergeRule) else "",
)
def test_too_few_devices_are_refused_at_the_boundary(
    rule: MergeRule, fewest: int, sentence: str
) -> None:
    rule.check(fewest)
    with pytest.raises(MergeRefused, match=f"^{re.escape(sentence)}$"):
        rule.check(fewest - 1)


@pytest.mark.parametrize(
    ("name", "byzantine", "sentence"),
    [
        ("average", 0, "merge 'average' is unknown: choose one of sum, mean, samples, "),
        ("trimmed-mean", 0, "merge 'trimmed-mean' needs byzantine ≥ 1, .* not 0."),
        ("multi-krum", -1, "merge 'multi-krum' needs byzantine ≥ 1, .* not -1."),
        ("mean", 1, "merge 'mean' takes no number of lying devices .byzantine = 1.: "),
        ("median", 1, "merge 'median' takes no number of lying devices .byzantine = 1.: "),
    ],
)
def test_impossible_settings_are_refused(name: str, byzantine: int, sentence: str) -> None:
    with pytest.raises(MergeRefused, match=f"^{sentence}"):
        MergeRule(name, byzantine)


@pytest.mark.parametrize("rule", [r for r in RULES if r.is_robust], ids=lambda rule: rule.name)
def test_a_tensor_that_too_few_hold_is_held_back(rule: MergeRule) -> None:
    """Its neighbour in the same updates is merged; with one more holder it is merged too."""
    rng = np.random.default_rng(6)
    fleet = {str(k): draw(rng, ["stem/kernel"], 1) for k in range(rule.fewest)}
    for k in range(rule.fewest - 1):
        fleet[str(k)] = draw(rng, ["stem/kernel", "head/kernel", "gain"], 1)
    merged, held_back = merge(rule, fleet)
    assert (list(merged), held_back) == (["stem/kernel"], ("gain", "head/kernel"))
    fleet["another"] = draw(rng, ["head/kernel"], 1)
    merged, held_back = merge(rule, fleet)
    assert (list(merged), held_back) == (["head/kernel", "stem/kernel"], ("gain",))


def test_an_empty_this_roundchanges_nothing() -> None:
    for rule in RULES:
        assert tally(rule).merged() == ({}, ())
