"""One member cannot take the round: bounds of weights and clipping, from three devices on."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.aggregator.storage.store import Identity, Store
from broker.errors import MergeRefused, StepRefused
from broker.merging.asynchronous import Asynchronous
from broker.merging.bounds import (
    UNBOUNDED,
    Bounds,
    bounded_weights,
    clip_factors,
    grouped,
    parse_clip,
    parse_max_weight,
)
from broker.merging.coordinator import Entry, Limited, Settings, State
from broker.merging.merge import MergeRule, Tally, tally
from broker.merging.optimizers import SGD, Delta, Optimizer
from broker.merging.synchronous import Synchronous
from broker.protocol.messages import Update
from broker.protocol.slice import Tensors

AVERAGES = ["sum", "mean", "samples"]
FLEET = 10
MOST = 10**9  # samples that an aggregator accepts


def vector(*values: float) -> npt.NDArray[np.float32]:
    return np.asarray(values, np.float32)


def add(this_round: Tally, fleet: Mapping[str, tuple[Tensors, int]]) -> Tensors:
    for device, (tensors, samples) in fleet.items():
        this_round.add(device, tensors, samples)
    return this_round.merged()[0]


# --- the equations -------------------------------------------------------------------------------


def test_weights_are_bounded_by_the_maximum_and_by_the_median() -> None:
    assert bounded_weights([100, 120, 80, MOST], Bounds()) == [100, 120, 80, 3 * 110]
    assert bounded_weights([100, 120, 80, MOST], Bounds(max_weight=None)) == [100, 120, 80, MOST]
    only_maximum = Bounds(max_samples=90, max_weight=None)
    assert bounded_weights([100, 120, 80, MOST], only_maximum) == [90, 90, 80, 90]
    # The provisioned maximum comes first: two liars of three cannot lift the median above it.
    assert bounded_weights([10, MOST, MOST], Bounds(max_samples=50)) == [10, 50, 50]


@pytest.mark.parametrize("samples", [[7], [5, 95], [1, MOST]])
def test_one_or_two_devices_count_as_they_say(samples: list[int]) -> None:
    """There is no majority to compare with, and 5 % and 95 % of the data may be the truth."""
    assert bounded_weights(samples, Bounds()) == samples
    norms = [float(10**k) for k in range(len(samples))]
    assert clip_factors(norms, samples, Bounds()) == [1.0] * len(samples)


def test_contributions_are_clipped_to_a_multiple_of_their_median() -> None:
    norms, ones = [1.0, 2.0, 3.0, 100.0], [1.0] * 4
    assert clip_factors(norms, ones, Bounds(clip=2.0)) == [1, 1, 1, 2 * 2.5 / 100]
    # Weight and norm together: three times the data, and an update three times as large.
    assert clip_factors([1, 1, 1, 3], [1, 1, 1, 3], Bounds(clip=2.0)) == [1, 1, 1, 2 / 9]
    assert clip_factors(norms, ones, Bounds(clip=None)) == [1] * 4


def test_devices_that_changed_nothing_are_no_measure() -> None:
    """As players are that still fill their replays."""
    assert clip_factors([0, 0, 0, 5.0], [1] * 4, Bounds()) == [1] * 4
    assert clip_factors([0, 0, 0, 1, 1, 5], [1] * 6, Bounds(clip=2.0)) == [1, 1, 1, 1, 1, 2 / 5]


def test_groups_are_tensors_that_the_same_devices_hold() -> None:
    slices = {"c": ("head", "stem", "tail"), "a": ("stem", "tail"), "b": ("stem",), "d": ("own",)}
    assert grouped(slices) == {
        ("c",): ["head"],
        ("d",): ["own"],
        ("a", "b", "c"): ["stem"],
        ("a", "c"): ["tail"],
    }
    assert grouped({}) == {}


# --- a round -------------------------------------------------------------------------------------


def test_the_paper_holds_for_one_weak_and_one_powerful_device() -> None:
    weak, powerful = vector(1, 0), vector(0, 1)
    merged = add(tally(MergeRule("samples")), {"w": ({"w": weak}, 5), "p": ({"w": powerful}, 95)})
    np.testing.assert_array_equal(merged["w"], vector(0.05, 0.95))


@pytest.mark.parametrize("name", AVERAGES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_within_the_bounds_nothing_changes_by_a_bit(name: str, seed: int) -> None:
    """Unequal branches, uneven counts, and updates of about the same size."""
    rng = np.random.default_rng(seed)
    fleet = {}
    for k in range(9):
        names = ("stem", "middle", "head")[: 1 + k % 3]
        tensors: Tensors = {n: rng.normal(size=400).astype(np.float32) for n in names}
        fleet[f"d{k}"] = tensors, int(rng.integers(100, 180))
    this_round = tally(MergeRule(name))
    merged = add(this_round, fleet)
    expected = add(tally(MergeRule(name, bounds=UNBOUNDED)), fleet)
    assert {n: v.tobytes() for n, v in merged.items()} == {
        n: v.tobytes() for n, v in expected.items()
    }
    assert (this_round.clipped, this_round.bounded) == (set(), set())


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("size", [10.0, 1e6, 1e12])
@pytest.mark.parametrize("samples", [100, MOST])
def test_one_of_ten_moves_a_round_by_twice_a_usual_update_at_most(
    name: str, size: float, samples: int
) -> None:
    """Nine devices send (1, 0), and a liar sends (0, size)."""
    fleet: dict[str, tuple[Tensors, int]] = {
        f"d{k}": ({"w": vector(1, 0)}, 100) for k in range(FLEET - 1)
    }
    this_round = tally(MergeRule(name))
    merged = add(this_round, fleet | {"liar": ({"w": vector(0, size)}, samples)})["w"]
    assert merged[0] >= (FLEET - 1 if name == "sum" else 0.8)
    assert 0 < merged[1] / merged[0] <= 2 / (FLEET - 1) * (1 + 1e-6)
    assert this_round.clipped == {"liar"}
    assert this_round.bounded == ({"liar"} if name == "samples" and samples == MOST else set())


def test_a_large_branch_is_not_taken_for_a_large_update() -> None:
    """Three weak devices share a stem; one powerful device also a head that is far larger."""
    rng = np.random.default_rng(1)
    stem = {f"d{k}": rng.normal(size=50).astype(np.float32) for k in range(4)}
    fleet: dict[str, tuple[Tensors, int]] = {d: ({"stem": v}, 10) for d, v in stem.items()}
    fleet["d3"][0]["head"] = 100 * rng.normal(size=5000).astype(np.float32)
    this_round = tally(MergeRule("mean"))
    merged = add(this_round, fleet)
    assert this_round.clipped == set()
    np.testing.assert_array_equal(merged["head"], fleet["d3"][0]["head"])
    # In the stem it is compared like everybody else.
    fleet["d3"][0]["stem"] = 50 * stem["d3"]
    this_round = tally(MergeRule("mean"))
    merged = add(this_round, fleet)
    assert this_round.clipped == {"d3"}
    np.testing.assert_array_equal(merged["head"], fleet["d3"][0]["head"])
    assert np.linalg.norm(merged["stem"]) < 2 * np.linalg.norm(stem["d0"])


def test_a_round_that_is_too_large_to_keep_is_bounded_by_the_devices_so_far() -> None:
    """Memory for twelve updates: liars in every part of the round are clipped all the same."""
    rng = np.random.default_rng(2)
    honest = {f"d{k}": rng.normal(1, 0.1, size=100).astype(np.float32) for k in range(40)}
    fleet: dict[str, tuple[Tensors, int]] = {d: ({"w": v}, 100) for d, v in honest.items()}
    for device in ("d0", "d20", "d39"):
        fleet[device] = {"w": -1e6 * honest[device]}, MOST
    this_round = tally(MergeRule("samples"), kept_bytes=12 * 400)
    merged = add(this_round, fleet)["w"]
    assert this_round.clipped == this_round.bounded == {"d0", "d20", "d39"}
    np.testing.assert_allclose(merged, (37 - 6) / 37, atol=0.1)
    # Honest ones are added in the same order, whatever is kept: no bit differs.
    usual: dict[str, tuple[Tensors, int]] = {d: ({"w": v}, 100) for d, v in honest.items()}
    kept = add(tally(MergeRule("samples")), usual)["w"]
    added = add(tally(MergeRule("samples"), kept_bytes=12 * 400), usual)["w"]
    assert kept.tobytes() == added.tobytes()


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "multi-krum"])
def test_robust_rules_see_updates_as_they_are(name: str) -> None:
    """Scaled down to the size of the others a liar would be harder to find."""
    rng = np.random.default_rng(3)
    fleet: dict[str, tuple[Tensors, int]] = {
        f"d{k}": ({"w": rng.normal(size=20).astype(np.float32)}, 10) for k in range(7)
    }
    fleet["d6"] = {"w": np.full(20, 1e9, np.float32)}, MOST
    rule = MergeRule(name, byzantine=0 if name == "median" else 1)
    bounded, plain = add(tally(rule), fleet), add(tally(replace(rule, bounds=UNBOUNDED)), fleet)
    np.testing.assert_array_equal(bounded["w"], plain["w"])
    assert np.abs(bounded["w"]).max() < 4


def test_a_round_tells_whose_updates_were_limited() -> None:
    how = Settings(mode="sync", merge=MergeRule("samples"), optimizer=Delta())
    coordinator = Synchronous(how, State("run", 0, {"w": vector(0, 0)}, {}), 0.0)
    for device, size, samples in (("a", 1, 10), ("b", 9, 10), ("c", 1, 10), ("d", 0.1, 1000)):
        coordinator.offer(update(device, 0, {"w": vector(size, 0)}, samples))
    assert coordinator.limited() == Limited()
    coordinator.close(0.0)
    assert coordinator.limited() == Limited(clipped=("b",), bounded=("d",))
    assert coordinator.limited() == Limited()


# --- without rounds ------------------------------------------------------------------------------


def update(device: str, round: int, tensors: Tensors, samples: int = 100) -> Update:
    return Update(
        device=device,
        run="run",
        round=round,
        nonce=f"{device}-{round}",
        samples=samples,
        exchange="delta",
        fingerprint="",
        tensors=tensors,
    )


def start(
    merge: str = "samples",
    *,
    bounds: Bounds | None = None,
    state: State | None = None,
    optimizer: Optimizer | None = None,
) -> Asynchronous:
    rule = MergeRule(merge, bounds=bounds or Bounds())
    how = Settings(mode="async", merge=rule, optimizer=optimizer or Delta(), staleness="none")
    names = ("stem", "middle", "head")
    zeros: Tensors = {name: np.zeros(3, np.float32) for name in names}
    return Asynchronous(how, state or State("run", 0, zeros, {}), 0.0)


def moved(coordinator: Asynchronous, sent: Update) -> float:
    """How far the first number of the stem went."""
    before = float(coordinator.state.shared["stem"][0])
    coordinator.offer(sent)
    return float(coordinator.state.shared["stem"][0]) - before


def test_an_asynchronous_liar_is_bounded_by_the_last_updates_of_the_others() -> None:
    coordinator = start()
    stem: Tensors = {"stem": vector(1, 0, 0)}
    for k in range(9):
        coordinator.offer(update(f"d{k}", k, stem))
    lie = update("liar", 9, {"stem": vector(-1e6, 0, 0)}, MOST)
    assert moved(coordinator, lie) == pytest.approx(-2 / 9, rel=1e-4)
    assert coordinator.limited() == Limited(clipped=("liar",), bounded=("liar",))
    # Nor does its count stall the others: 1/10 of their update, and not 100 / 10⁹.
    assert moved(coordinator, update("d0", 10, stem)) == pytest.approx(1 / 9, rel=1e-4)
    assert coordinator.limited() == Limited()


def test_two_asynchronous_devices_count_as_they_say() -> None:
    coordinator = start()
    coordinator.offer(update("weak", 0, {"stem": vector(1, 0, 0)}, 5))
    powerful = update("powerful", 1, {"stem": vector(40, 0, 0)}, 95)
    assert moved(coordinator, powerful) == pytest.approx(0.95 * 40)


@pytest.mark.parametrize("merge", AVERAGES)
def test_the_sums_and_means_of_unequal_branches_are_as_without_bounds(merge: str) -> None:
    """While every update is of the usual size; slices grow and shrink on the way."""
    rng = np.random.default_rng(4)
    slices = [("stem",), ("stem", "middle"), ("stem", "middle", "head")]
    bounded, plain = start(merge), start(merge, bounds=UNBOUNDED)
    for step in range(60):
        names = slices[int(rng.integers(3))]
        tensors: Tensors = {n: (0.1 + rng.random(3) / 50).astype(np.float32) for n in names}
        sent = update(f"d{rng.integers(6)}", step, tensors, int(rng.integers(100, 130)))
        for coordinator in (bounded, plain):
            coordinator.offer(sent)
    assert bounded.limited() == Limited()
    for name, value in plain.state.shared.items():
        assert bounded.state.shared[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("merge", AVERAGES)
def test_replay_after_a_kill_gives_the_same_theta_bit_for_bit(merge: str, tmp_path: Path) -> None:
    """Through a real snapshot: bounded weights need more than the ledger had before."""
    rng = np.random.default_rng(5)
    identity = Identity("fleet", "", "async", "delta", "Delta")
    names = ("stem", "middle", "head")
    real, sent = start(merge), []
    store = Store(tmp_path, identity)
    for step in range(80):
        kind = names[: int(rng.integers(1, 4))]
        size = 10.0 ** rng.choice([0, 0, 0, 1, 6])
        tensors: Tensors = {n: (size * rng.normal(size=3)).astype(np.float32) for n in kind}
        samples = int(rng.choice([90, 110, 130, 10**6]))
        sent.append(update(f"d{rng.integers(7)}", step, tensors, samples))
        real.offer(sent[-1])
        if step == 40:
            store.snapshot(real.state)
    assert real.limited() != Limited()
    state = store.load()
    store.close()
    assert state is not None
    again = start(merge, state=state)
    for later in sent[41:]:
        again.offer(later)
    assert again.state.ledger == real.state.ledger
    for name, value in real.state.shared.items():
        assert again.state.shared[name].tobytes() == value.tobytes()


def test_a_snapshot_without_norms_is_still_read() -> None:
    """An older aggregator wrote none: its devices have no part in the median until they send."""
    ledger = {f"d{k}": Entry(0, "old", 100, ("stem",)) for k in range(5)}
    zeros: Tensors = {"stem": vector(0, 0, 0)}
    coordinator = start(state=State("run", 5, zeros, {}, ledger))
    large = update("d0", 5, {"stem": vector(60, 0, 0)}, MOST)
    assert moved(coordinator, large) == pytest.approx(60 * 300 / 700), "its weight is bounded"


def test_an_impossible_step_leaves_the_comparison_as_it_was() -> None:
    coordinator = start("mean", optimizer=SGD(1e38), bounds=UNBOUNDED)
    coordinator.offer(update("a", 0, {"stem": vector(1e-38, 0, 0)}))
    before = copy.deepcopy(coordinator.state)
    with pytest.raises(StepRefused):
        coordinator.offer(update("b", 1, {"stem": vector(1e9, 0, 0), "head": vector(0, 0, 0)}))
    assert coordinator.state.ledger == before.ledger
    step = moved(coordinator, update("a", 1, {"stem": vector(1e-38, 0, 0)}))
    assert step == pytest.approx(-1.0, rel=1e-3), "a is still alone"


def test_a_state_is_continued_by_the_bounds_that_it_was_made_with() -> None:
    def identity(bounds: Bounds) -> str:
        return Asynchronous.replay_identity(start(bounds=bounds).settings)

    assert identity(UNBOUNDED) == "samples, clip norm None, none, Delta()", "as before bounds"
    assert identity(Bounds()).endswith(", Delta(), max weight 3.0, clip adaptive 2.0")
    different = [
        UNBOUNDED,
        Bounds(),
        Bounds(max_samples=10),
        Bounds(clip=None),
        Bounds(max_weight=None),
        Bounds(clip_norm=1.0),
    ]
    assert len({identity(bounds) for bounds in different}) == len(different)


# --- settings ------------------------------------------------------------------------------------


def test_options_are_read() -> None:
    assert [parse_max_weight(text) for text in ("3", "1.5", "off")] == [3.0, 1.5, None]
    assert [parse_clip(text) for text in ("adaptive:2", "adaptive:1.5", "off")] == [2.0, 1.5, None]


@pytest.mark.parametrize("text", ["", "three", "adaptive:3"])
def test_a_weight_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(MergeRefused, match=rf"^max_weight '{text}' is not understood: write "):
        parse_max_weight(text)


@pytest.mark.parametrize("text", ["", "3", "adaptive", "adaptive:x", "fixed:3", "adaptive:nan"])
def test_a_clip_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MergeRefused, match=rf"^clip '{text}' is not understood: write adaptive:"):
        parse_clip(text)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"max_samples": 0}, "max_samples must be 1 or more, not 0."),
        ({"max_weight": 0.5}, "max_weight is a multiple of the median: it must be .*, not 0.5."),
        ({"max_weight": math.inf}, "max_weight is a multiple of the median: .*, not inf."),
        ({"clip": math.nan}, "clip is a multiple of the median: .*, not nan."),
        ({"clip_norm": 0.0}, "clip_norm must be a finite number above 0, not 0.0."),
        ({"clip_norm": math.inf}, "clip_norm must be a finite number above 0, not inf."),
        ({"clip_norm": math.nan}, "clip_norm must be a finite number above 0, not nan."),
    ],
)
def test_impossible_bounds_are_refused(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(MergeRefused, match=f"^{sentence}$"):
        Bounds(**wrong)  # type: ignore[arg-type]
