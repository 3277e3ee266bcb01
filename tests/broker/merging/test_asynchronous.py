"""Merging at once: θ ← θ + w(s)·α·Δ against plain numpy, and no update counts twice."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from broker.errors import SettingsRefused, StepRefused
from broker.merging.asynchronous import Asynchronous
from broker.merging.bounds import UNBOUNDED, Bounds
from broker.merging.coordinator import Entry, Outcome, Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import SGD, Adam, Delta, Momentum, Optimizer, PseudoGradient
from broker.merging.presence import MAX_DEVICES
from broker.merging.synchronous import Synchronous
from broker.protocol.messages import Reason, Refused, Update
from broker.protocol.slice import Tensors

SHAPES = {"stem/kernel": (3, 2), "stem/bias": (2,), "middle/kernel": (2, 2), "gain": ()}
STEM = ("stem/kernel", "stem/bias")
CASCADE = (STEM, (*STEM, "middle/kernel"), tuple(SHAPES))  # each slice holds the one before
RULES = ("sum", "mean", "samples")


def draw(seed: int, names: Sequence[str] = tuple(SHAPES), scale: float = 0.1) -> Tensors:
    rng = np.random.default_rng(seed)
    return {n: np.asarray(scale * rng.normal(size=SHAPES[n]), np.float32) for n in names}


def update(
    device: str, round: int, tensors: Tensors, *, samples: int = 1, nonce: str = ""
) -> Update:
    return Update(
        device=device,
        run="run",
        round=round,
        nonce=nonce or f"{device}-{round}",
        samples=samples,
        exchange="delta",
        fingerprint="",
        tensors=tensors,
    )


def start(
    merge: str = "mean",
    *,
    optimizer: Optimizer | None = None,
    bounds: Bounds = UNBOUNDED,
    ledger: dict[str, Entry] | None = None,
    round: int = 0,
    **more: Any,
) -> Asynchronous:
    optimizer = optimizer or Delta()
    settings = Settings(
        mode="async", merge=MergeRule(merge, bounds=bounds), optimizer=optimizer, **more
    )
    shared: Tensors = {n: np.zeros(shape, np.float32) for n, shape in SHAPES.items()}
    state = State("run", round, shared, optimizer.initial(shared), ledger or {})
    return Asynchronous(settings, state, now=0.0)


@dataclass
class Plain:
    """θ ← θ + w(s)·α·Δ, with lists and float64, or an optimiser's step with w(s)·α·Δ."""

    merge: str
    staleness: str
    optimizer: Optimizer = field(default_factory=Delta)
    round: int = 0
    heard: dict[str, Update] = field(default_factory=dict)
    theta: dict[str, npt.NDArray[np.float64]] = field(
        default_factory=lambda: {n: np.zeros(shape) for n, shape in SHAPES.items()}
    )
    moments: dict[str, tuple[Any, Any, int]] = field(default_factory=dict)  # m, v, t

    def take(self, sent: Update) -> None:
        self.heard[sent.device] = sent
        stale = self.round - sent.round
        w = 1 / math.sqrt(1 + stale) if self.staleness == "polynomial" else 1.0
        for name, tensor in sent.tensors.items():
            holders = [other for other in self.heard.values() if name in other.tensors]
            share = {
                "sum": 1.0,
                "mean": 1 / len(holders),
                "samples": sent.samples / sum(other.samples for other in holders),
            }[self.merge]
            self.move(name, w * share * tensor.astype(np.float64))
        self.round += 1

    def move(self, name: str, change: npt.NDArray[np.float64]) -> None:
        match self.optimizer:
            case Delta():
                self.theta[name] = self.theta[name] + change
            case SGD(rate):
                self.theta[name] = self.theta[name] - rate * change
            case PseudoGradient(Momentum(beta, rate)):
                velocity, _, _ = self.moments.get(name, (0.0, 0.0, 0))
                velocity = beta * velocity + change
                self.moments[name] = velocity, 0.0, 0
                self.theta[name] = self.theta[name] + rate * velocity
            case Adam(rate):
                m, v, t = self.moments.get(name, (0.0, 0.0, 0))
                m, v, t = 0.9 * m + 0.1 * change, 0.999 * v + 0.001 * change**2, t + 1
                self.moments[name] = m, v, t
                step = rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                self.theta[name] = self.theta[name] - step * m / (np.sqrt(v) + 1e-7)


def assert_same(state: State, before: State) -> None:
    """Bit for bit."""
    assert (state.run, state.round, state.ledger) == (before.run, before.round, before.ledger)
    for now, then in ((state.shared, before.shared), (state.slots, before.slots)):
        assert {n: a.tobytes() for n, a in now.items()} == {n: a.tobytes() for n, a in then.items()}


def refusal(coordinator: Asynchronous, sent: Update) -> tuple[Reason, str]:
    """Why it was refused; nothing has changed then."""
    before = copy.deepcopy(coordinator.state)
    with pytest.raises(Refused) as caught:
        coordinator.offer(sent)
    assert_same(coordinator.state, before)
    return caught.value.reason, str(caught.value)


# --- the arithmetic ------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(CASCADE),
        st.integers(1, 10**6),  # samples
        st.integers(0, 5),  # how old the θ is that it starts from
        st.sampled_from(["once", "twice", "replayed", "early"]),
    ),
    max_size=25,
)


@pytest.mark.parametrize(
    "optimizer", [Delta(), SGD(0.3), Adam(0.01), PseudoGradient(Momentum(0.5, 0.8))], ids=repr
)
@pytest.mark.parametrize("staleness", ["polynomial", "none"])
@pytest.mark.parametrize("merge", RULES)
@given(script=steps)
@hypothesis_settings(max_examples=12, deadline=None)
def test_theta_is_what_plain_numpy_makes_of_the_updates(
    merge: str, staleness: str, optimizer: Optimizer, script: list[Any]
) -> None:
    real = start(merge, optimizer=optimizer, staleness=staleness)
    plain = Plain(merge, staleness, optimizer)
    for seed, (device, names, samples, age, kind) in enumerate(script):
        last = plain.heard[device].round if device in plain.heard else -1
        round = min(plain.round, max(last + 1, plain.round - age))
        sent = update(device, round, draw(seed, names), samples=samples, nonce=f"n{seed}")
        assert real.offer(sent) is Outcome.ACCEPTED
        plain.take(sent)
        if kind == "twice":
            assert real.offer(sent) is Outcome.DUPLICATE
        elif kind == "replayed":
            again = update(device, round, draw(seed, names), nonce="other")
            assert refusal(real, again)[0] is Reason.REPLAYED
        elif kind == "early":
            future = update("e", plain.round + 1, draw(seed, names))
            assert refusal(real, future)[0] is Reason.EARLY
        assert real.state.round == plain.round == seed + 1
        for name, value in real.state.shared.items():
            np.testing.assert_allclose(value, plain.theta[name], rtol=1e-6, atol=1e-6)
    assert {d: (e.round, e.nonce, e.samples) for d, e in real.state.ledger.items()} == {
        d: (u.round, u.nonce, u.samples) for d, u in plain.heard.items()
    }


def test_the_weights_by_hand() -> None:
    real = start("samples", staleness="polynomial")
    bias = real.state.shared["stem/bias"]

    def moved(sent: Update) -> float:
        before = real.state.shared["stem/bias"].copy()
        real.offer(sent)
        return float((real.state.shared["stem/bias"] - before)[0])

    one: Tensors = {"stem/bias": np.ones_like(bias)}
    assert moved(update("a", 0, one, samples=10)) == 1.0  # alone, fresh
    assert moved(update("b", 0, one, samples=30)) == pytest.approx(0.75 / math.sqrt(2))  # s = 1
    assert moved(update("a", 2, one, samples=30)) == pytest.approx(0.5)  # it has more data now
    assert moved(update("b", 1, one, samples=10)) == pytest.approx(0.25 / math.sqrt(3))  # s = 2


def test_a_device_whose_slice_shrinks_no_longer_counts_for_what_it_dropped() -> None:
    real = start("mean", staleness="none")
    both: Tensors = {"stem/bias": np.ones(2, np.float32), "gain": np.ones((), np.float32)}
    real.offer(update("a", 0, both))
    real.offer(update("a", 1, {"stem/bias": both["stem/bias"]}))
    real.offer(update("b", 2, both))
    assert real.state.shared["gain"] == 2.0, "b is its only holder now"
    np.testing.assert_array_equal(real.state.shared["stem/bias"], 2.5)


@pytest.mark.parametrize("merge", ["mean", "samples"])
def test_one_update_of_each_device_moves_theta_as_a_round_would(merge: str) -> None:
    """From the second sweep on; in the first, whoever comes early divides by fewer devices."""
    devices = {d: (draw(k, CASCADE[k % 3]), 10 * k + 1) for k, d in enumerate("abcdef")}
    real = start(merge, staleness="none")
    shared: Tensors = {n: np.zeros(shape, np.float32) for n, shape in SHAPES.items()}
    rule = MergeRule(merge, bounds=UNBOUNDED)
    settings = Settings(mode="sync", merge=rule, optimizer=Delta())
    round = Synchronous(settings, State("run", 0, shared, {}), now=0.0)
    for device, (tensors, samples) in devices.items():
        round.offer(update(device, 0, tensors, samples=samples))
    round.close(0.0)

    for sweep in range(3):
        before = real.state.shared
        base = real.state.round  # all of them start from the same θ
        for device, (tensors, samples) in devices.items():
            real.offer(update(device, base, tensors, samples=samples))
        for name, expected in round.state.shared.items():
            moved = real.state.shared[name] - before[name]
            assert np.allclose(moved, expected, atol=1e-6) == (sweep > 0), (sweep, name)


def test_the_first_sweep_weighs_1_and_a_half_and_a_third() -> None:
    real = start("mean", staleness="none")
    for device in "abc":
        real.offer(update(device, 0, {"gain": np.ones((), np.float32)}))
    assert real.state.shared["gain"] == pytest.approx(1 + 1 / 2 + 1 / 3)


def test_a_large_update_is_clipped_as_a_whole() -> None:
    real = start("sum", staleness="none", bounds=Bounds(clip_norm=1.0))
    sent: Tensors = {"stem/bias": np.full(2, 3.0, np.float32), "gain": np.asarray(4.0, np.float32)}
    real.offer(update("a", 0, sent))
    norm = math.sqrt(9 + 9 + 16)
    np.testing.assert_allclose(real.state.shared["stem/bias"], 3 / norm, rtol=1e-6)
    np.testing.assert_allclose(real.state.shared["gain"], 4 / norm, rtol=1e-6)
    small: Tensors = {"gain": np.asarray(0.25, np.float32)}
    real.offer(update("b", 1, small))
    np.testing.assert_allclose(real.state.shared["gain"], 4 / norm + 0.25, rtol=1e-6)


# --- who is refused ------------------------------------------------------------------------------


def test_only_newer_updates_of_a_device_count() -> None:
    real = start("sum")
    assert real.offer(update("a", 0, draw(0))) is Outcome.ACCEPTED
    assert real.offer(update("b", 0, draw(1))) is Outcome.ACCEPTED
    assert real.offer(update("a", 1, draw(2))) is Outcome.ACCEPTED
    for old in (update("a", 0, draw(0)), update("a", 0, draw(9), nonce="x")):
        assert refusal(real, old) == (
            Reason.REPLAYED,
            "the update is not newer than this device's last one.",
        )
    assert refusal(real, update("a", 1, draw(9), nonce="x"))[0] is Reason.REPLAYED
    assert refusal(real, update("b", 4, draw(9))) == (
        Reason.EARLY,
        "the update starts from θ 4; this is 3.",
    )
    before = copy.deepcopy(real.state)
    assert real.offer(update("a", 1, draw(2))) is Outcome.DUPLICATE
    assert_same(real.state, before)


def test_a_full_fleet_takes_no_newcomer() -> None:
    ledger = {f"d{k}": Entry(0, "old", 1, STEM) for k in range(MAX_DEVICES)}
    real = start("sum", round=3, ledger=ledger)
    assert refusal(real, update("newcomer", 3, draw(0))) == (
        Reason.FULL,
        "the fleet has its 10000 devices.",
    )
    assert real.offer(update("d7", 3, draw(0))) is Outcome.ACCEPTED


def test_a_finished_fleet_takes_nothing_but_answers_what_it_took() -> None:
    real = start("sum", rounds=2)
    real.offer(update("a", 0, draw(0)))
    assert not real.finished
    real.offer(update("b", 0, draw(1)))
    assert real.finished
    assert real.offer(update("a", 0, draw(0))) is Outcome.DUPLICATE
    assert refusal(real, update("a", 2, draw(2))) == (
        Reason.FINISHED,
        "the fleet has finished after round 2.",
    )


def test_an_impossible_step_changes_nothing() -> None:
    real = start("sum", optimizer=SGD(1e38))
    real.offer(update("a", 0, draw(0, STEM, scale=1e-9)))
    before = copy.deepcopy(real.state)
    with pytest.raises(StepRefused, match="'stem/kernel' infinite"):
        real.offer(update("a", 1, draw(1, STEM, scale=1e9)))
    assert_same(real.state, before)
    assert real.offer(update("a", 1, draw(1, STEM, scale=1e-9))) is Outcome.ACCEPTED


def test_no_round_waits_for_anybody() -> None:
    real = start()
    real.join("a")
    real.leave("b")
    assert real.closes_at(1e9) == math.inf


# --- after a restart -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [Adam(0.01), PseudoGradient(Momentum(0.5, 1.0)), PseudoGradient(Adam(0.01, epsilon=1e-3))],
    ids=repr,
)
@pytest.mark.parametrize("merge", RULES)
def test_snapshot_and_journal_give_theta_back_bit_for_bit(merge: str, optimizer: Optimizer) -> None:
    real = start(merge, optimizer=optimizer)
    sent = []
    for seed in range(20):
        device = "abcd"[seed * seed % 4]
        last = real.state.ledger.get(device)
        round = max(last.round + 1 if last else 0, seed - seed % 3)
        sent.append(update(device, round, draw(seed, CASCADE[seed % 3]), samples=seed + 1))
        real.offer(sent[-1])
        if seed == 11:
            snapshot = copy.deepcopy(real.state)
    again = Asynchronous(real.settings, snapshot, now=0.0)
    for later in sent[12:]:
        again.offer(later)
    assert_same(again.state, real.state)


# --- settings that cannot work -------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        MergeRule("median"),
        MergeRule("trimmed-mean", byzantine=1),
        MergeRule("multi-krum", byzantine=1),
    ],
    ids=lambda rule: rule.name,
)
def test_robust_rules_need_rounds(rule: MergeRule) -> None:
    with pytest.raises(SettingsRefused) as caught:
        Settings(mode="async", merge=rule, optimizer=Delta(), quorum=9)
    assert str(caught.value) == (
        f"merge '{rule.name}' compares devices, and the asynchronous coordinator sees one at a "
        "time; use sync, or clip the norm."
    )
