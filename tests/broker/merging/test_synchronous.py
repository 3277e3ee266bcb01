"""Rounds: who is counted, when a round closes, and that θ is what plain numpy makes of it."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from broker.errors import MergeRefused, SettingsRefused
from broker.merging.bounds import UNBOUNDED, Bounds
from broker.merging.coordinator import Closed, Entry, Outcome, Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import SGD, Adam, Delta, Momentum, PseudoGradient
from broker.merging.presence import MAX_DEVICES
from broker.merging.synchronous import Synchronous
from broker.protocol.messages import Reason, Refused, Update
from broker.protocol.slice import Tensors

SHAPES = {"stem/kernel": (3, 2), "stem/bias": (2,), "middle/kernel": (2, 2), "gain": ()}
STEM = ("stem/kernel", "stem/bias")
CASCADE = (STEM, (*STEM, "middle/kernel"), tuple(SHAPES))  # each slice holds the one before
DEADLINE = 10.0  # seconds


def draw(seed: int, names: Sequence[str] = tuple(SHAPES), scale: float = 0.1) -> Tensors:
    rng = np.random.default_rng(seed)
    return {n: np.asarray(scale * rng.normal(size=SHAPES[n]), np.float32) for n in names}


def ones(value: float, names: Sequence[str] = STEM) -> Tensors:
    return {name: np.full(SHAPES[name], value, np.float32) for name in names}


def update(
    device: str, round: int = 0, nonce: str = "", *, samples: int = 1, **more: Any
) -> Update:
    return Update(
        device=device,
        run="run",
        round=round,
        nonce=nonce or f"{device}-{round}",
        samples=samples,
        exchange="delta",
        fingerprint="",
        tensors=more.get("tensors", ones(1.0)),
    )


def how(merge: str = "mean", **more: Any) -> Settings:
    usual: dict[str, Any] = {"optimizer": Delta(), "quorum": 1, "deadline_seconds": DEADLINE}
    return Settings(mode="sync", merge=MergeRule(merge, bounds=UNBOUNDED), **usual | more)


def start(settings: Settings, *, now: float = 0.0, **state: Any) -> Synchronous:
    shared = ones(0.0, tuple(SHAPES))
    return Synchronous(
        settings, State("run", 0, shared, settings.optimizer.initial(shared), **state), now
    )


def test_a_receiver_is_present_and_no_round_waits_for_it() -> None:
    fleet = start(how())
    assert fleet.join("sender") and fleet.join("receiver", receives=True)
    assert len(fleet.present) == 2
    fleet.offer(update("sender", tensors=ones(1.0, ("stem/bias",))))
    assert fleet.closes_at(1.0) == 1.0
    closed = fleet.close(1.0)
    assert (closed.merged, closed.devices, closed.silent) == (True, 1, ())
    assert "receiver" in fleet.present
    # A tensor that nobody sent stays as it was.
    np.testing.assert_array_equal(fleet.state.shared["stem/kernel"], 0.0)
    np.testing.assert_array_equal(fleet.state.shared["stem/bias"], 1.0)
    fleet.join("receiver")  # started again with a bundle that trains the stem
    assert fleet.closes_at(2.0) == 1.0 + DEADLINE


def refusal(coordinator: Synchronous, sent: Update) -> tuple[Reason, str]:
    """Why it was refused; nothing has changed then."""
    before = copy.deepcopy(coordinator.state)
    due = coordinator.closes_at(5.0)
    with pytest.raises(Refused) as caught:
        coordinator.offer(sent)
    assert_same(coordinator.state, before)
    assert coordinator.closes_at(5.0) == due
    return caught.value.reason, str(caught.value)


def assert_same(state: State, before: State) -> None:
    """Bit for bit."""
    assert (state.run, state.round, state.ledger) == (before.run, before.round, before.ledger)
    for now, then in ((state.shared, before.shared), (state.slots, before.slots)):
        assert {n: a.tobytes() for n, a in now.items()} == {n: a.tobytes() for n, a in then.items()}


# --- when a round closes -------------------------------------------------------------------------


def test_a_round_closes_when_all_present_have_sent() -> None:
    coordinator = start(how())
    for device in "abc":
        coordinator.join(device)
    coordinator.join("a")  # a birth may come twice
    for device in "ab":
        assert coordinator.offer(update(device)) is Outcome.ACCEPTED
        assert coordinator.closes_at(1.0) == DEADLINE
    coordinator.offer(update("c", tensors=ones(4.0)))
    assert coordinator.closes_at(1.0) == 1.0
    assert coordinator.close(1.0) == Closed(merged=True, devices=3)
    np.testing.assert_array_equal(coordinator.state.shared["stem/bias"], [2, 2])
    assert coordinator.state.round == 1
    assert coordinator.closes_at(1.5) == 1.0 + DEADLINE, "a new round has the whole deadline"


def test_a_round_does_not_close_early_below_its_quorum() -> None:
    coordinator = start(how(quorum=2))
    coordinator.join("a")
    coordinator.offer(update("a"))
    assert coordinator.closes_at(1.0) == DEADLINE
    coordinator.offer(update("stranger"))  # its birth got lost; it counts all the same
    assert coordinator.closes_at(1.0) == 1.0


def test_at_the_deadline_whoever_has_sent_is_merged() -> None:
    coordinator = start(how(quorum=2))
    for device in "abcd":
        coordinator.join(device)
    coordinator.offer(update("a", tensors=ones(1.0)))
    coordinator.offer(update("b", tensors=ones(2.0)))
    assert coordinator.closes_at(DEADLINE - 0.1) == DEADLINE
    assert coordinator.close(DEADLINE) == Closed(merged=True, devices=2, silent=("c", "d"))
    np.testing.assert_array_equal(coordinator.state.shared["stem/bias"], [1.5, 1.5])
    reason, text = refusal(coordinator, update("c"))
    assert (reason, text) == (Reason.LATE, "the update is for round 0; this is 1.")


def test_a_silent_device_is_waited_for_once() -> None:
    coordinator = start(how(quorum=1))
    for device in "ab":
        coordinator.join(device)
    coordinator.offer(update("a"))
    assert coordinator.closes_at(1.0) == DEADLINE  # b may still send
    assert coordinator.close(DEADLINE).silent == ("b",)
    coordinator.offer(update("a", 1))
    assert coordinator.closes_at(DEADLINE + 1) == DEADLINE + 1  # nobody is missing
    assert coordinator.close(DEADLINE + 1).silent == ()
    coordinator.join("b")  # it says something: it is waited for again
    coordinator.offer(update("a", 2))
    assert coordinator.closes_at(DEADLINE + 2) == 2 * DEADLINE + 1


def test_a_device_that_waits_with_its_training_is_not_waited_for() -> None:
    coordinator = start(how(quorum=1))
    for device in "ab":
        coordinator.join(device)
    coordinator.offer(update("a"))
    assert coordinator.closes_at(1.0) == DEADLINE
    assert [coordinator.join("b", waiting=True), coordinator.join("b", waiting=True)] == [
        True,
        False,
    ]
    assert coordinator.closes_at(1.0) == 1.0
    assert coordinator.close(1.0).silent == ()
    assert coordinator.join("b")
    coordinator.offer(update("a", 1))
    assert coordinator.closes_at(2.0) == 1.0 + DEADLINE
    assert coordinator.offer(update("b", 1)) is Outcome.ACCEPTED
    assert coordinator.closes_at(2.0) == 2.0


def test_after_a_restart_a_device_that_waits_is_not_expected() -> None:
    coordinator = start(how(quorum=1))
    for device in "ab":
        coordinator.offer(update(device))
    coordinator.close(1.0)
    again = Synchronous(coordinator.settings, coordinator.state, 1.0)
    again.offer(update("a", 1))
    assert again.closes_at(2.0) == 1.0 + DEADLINE
    again.join("b", waiting=True)
    assert again.closes_at(2.0) == 2.0


def test_below_quorum_a_deadline_changes_nothing() -> None:
    coordinator = start(how(quorum=3))
    coordinator.offer(update("a", tensors=draw(1)))
    before = copy.deepcopy(coordinator.state)
    for extension in (1, 2):
        now = extension * DEADLINE
        assert coordinator.closes_at(now) == now
        assert coordinator.close(now) == Closed(merged=False, devices=1)
        assert_same(coordinator.state, before)
        assert coordinator.closes_at(now) == now + DEADLINE
    # The update that was there before still counts, once.
    assert coordinator.offer(update("a", tensors=draw(1))) is Outcome.DUPLICATE
    assert refusal(coordinator, update("a", nonce="other"))[0] is Reason.SECOND
    for seed, device in ((2, "b"), (3, "c")):
        coordinator.offer(update(device, tensors=draw(seed)))
    assert coordinator.close(25.0).merged
    expected = np.mean([draw(seed)["stem/kernel"] for seed in (1, 2, 3)], axis=0)
    np.testing.assert_allclose(coordinator.state.shared["stem/kernel"], expected, atol=1e-7)


def test_whoever_leaves_is_not_waited_for() -> None:
    coordinator = start(how())
    for device in "ab":
        coordinator.join(device)
    coordinator.offer(update("a"))
    assert coordinator.closes_at(1.0) == DEADLINE
    coordinator.leave("b")
    coordinator.leave("b")
    assert coordinator.closes_at(1.0) == 1.0
    coordinator.join("b")
    assert coordinator.closes_at(1.0) == DEADLINE
    coordinator.leave("a")  # what it sent still counts
    coordinator.offer(update("b", tensors=ones(3.0)))
    coordinator.close(1.0)
    np.testing.assert_array_equal(coordinator.state.shared["stem/bias"], [2, 2])


def test_nobody_is_no_round() -> None:
    coordinator = start(how())
    assert coordinator.closes_at(1.0) == DEADLINE
    assert coordinator.close(DEADLINE) == Closed(merged=False, devices=0)
    assert coordinator.state.round == 0


def test_a_finished_fleet_takes_nothing_but_answers_what_it_took() -> None:
    coordinator = start(how(rounds=1))
    coordinator.offer(update("a"))
    assert not coordinator.finished
    coordinator.close(1.0)
    assert coordinator.finished
    assert coordinator.closes_at(1e9) == math.inf
    assert coordinator.offer(update("a")) is Outcome.DUPLICATE
    for late in (update("b"), update("b", 1), update("a", 0, "other")):
        reason, text = refusal(coordinator, late)
        assert (reason, text) == (Reason.FINISHED, "the fleet has finished after round 1.")


# --- what counts ---------------------------------------------------------------------------------


def test_a_duplicate_gets_the_same_answer_and_counts_once() -> None:
    coordinator = start(how("sum"))
    assert coordinator.offer(update("a")) is Outcome.ACCEPTED
    before = copy.deepcopy(coordinator.state)
    for _ in range(2):
        assert coordinator.offer(update("a")) is Outcome.DUPLICATE
    assert_same(coordinator.state, before)
    coordinator.close(1.0)
    merged = copy.deepcopy(coordinator.state)
    np.testing.assert_array_equal(merged.shared["stem/bias"], [1, 1])
    assert coordinator.offer(update("a")) is Outcome.DUPLICATE, "also after the merge"
    assert_same(coordinator.state, merged)
    assert coordinator.close(2.0) == Closed(merged=False, devices=0)


def test_updates_at_the_wrong_time_are_refused() -> None:
    coordinator = start(how())
    coordinator.offer(update("a"))
    assert refusal(coordinator, update("a", nonce="other")) == (
        Reason.SECOND,
        "this device's update for the round is already in.",
    )
    assert refusal(coordinator, update("b", 1)) == (
        Reason.EARLY,
        "the update is for round 1; this is 0.",
    )
    coordinator.close(1.0)
    assert refusal(coordinator, update("b", 0))[0] is Reason.LATE
    assert refusal(coordinator, update("a", 0, "other"))[0] is Reason.LATE
    assert coordinator.offer(update("a", 1)) is Outcome.ACCEPTED
    # The nonce of an older round is no duplicate of this one.
    assert refusal(coordinator, update("a", 1, "a-0"))[0] is Reason.SECOND


def test_a_full_fleet_takes_no_newcomer() -> None:
    heard = {f"d{k}": Entry(0, "old", 1, STEM) for k in range(MAX_DEVICES)}
    coordinator = start(how())
    coordinator.state.round = 5
    coordinator.state.ledger.update(heard)
    reason, text = refusal(coordinator, update("newcomer", 5))
    assert (reason, text) == (Reason.FULL, "the fleet has its 10000 devices.")
    assert coordinator.offer(update("d7", 5)) is Outcome.ACCEPTED


def test_tensors_that_too_few_hold_are_held_back() -> None:
    settings = Settings(
        mode="sync", merge=MergeRule("median"), optimizer=Delta(), quorum=3, deadline_seconds=1
    )
    coordinator = start(settings)
    for value, device in enumerate("abc", 1):
        names = STEM if device == "a" else CASCADE[1]
        coordinator.offer(update(device, tensors=ones(float(value), names)))
    closed = coordinator.close(1.0)
    assert closed == Closed(merged=True, devices=3, held_back=("middle/kernel",))
    assert {n: float(v.max()) for n, v in coordinator.state.shared.items()} == {
        "stem/kernel": 2,
        "stem/bias": 2,
        "middle/kernel": 0,
        "gain": 0,
    }


@pytest.mark.parametrize(
    "optimizer", [SGD(0.5), Adam(0.1), PseudoGradient(Momentum(0.5, 1.0))], ids=repr
)
def test_updates_are_merged_before_the_optimizer_steps(optimizer: Any) -> None:
    coordinator = start(how("samples", optimizer=optimizer, quorum=2))
    theta, slots = dict(coordinator.state.shared), coordinator.state.slots
    for round in range(3):
        sent = {d: draw(10 * round + k, CASCADE[k]) for k, d in enumerate("ab")}
        for samples, (device, tensors) in zip((3, 1), sent.items(), strict=True):
            coordinator.offer(update(device, round, samples=samples, tensors=tensors))
        coordinator.close(0.0)
        gradient = {n: 0.75 * sent["a"][n] + 0.25 * sent["b"][n] for n in STEM}
        gradient["middle/kernel"] = sent["b"]["middle/kernel"]
        theta, slots = optimizer.step(theta, gradient, slots)
    for name in SHAPES:
        np.testing.assert_allclose(coordinator.state.shared[name], theta[name], atol=1e-6)
    assert np.array_equal(theta["gain"], 0), "nobody sent it"


def test_a_large_update_is_clipped() -> None:
    settings = Settings(
        mode="sync",
        merge=MergeRule("sum", bounds=Bounds(clip_norm=2.0)),
        optimizer=Delta(),
        deadline_seconds=1,
    )
    coordinator = start(settings)
    coordinator.offer(update("a", tensors=ones(100.0)))  # norm 100·√8
    coordinator.offer(update("b", tensors=ones(0.5)))  # norm 0.5·√8 < 2
    coordinator.close(1.0)
    expected = 2 / math.sqrt(8) + 0.5
    np.testing.assert_allclose(coordinator.state.shared["stem/bias"], expected, rtol=1e-6)


# --- after a restart -----------------------------------------------------------------------------


def test_after_a_restart_those_of_the_last_round_are_waited_for() -> None:
    ledger = {"a": Entry(6, "n", 1, STEM), "b": Entry(5, "n", 1, STEM), "c": Entry(6, "n", 1, STEM)}
    settings = how()
    state = State("run", 7, ones(0.0, tuple(SHAPES)), {}, ledger)
    coordinator = Synchronous(settings, state, now=100.0)
    coordinator.offer(update("a", 7))
    assert coordinator.closes_at(101.0) == 100.0 + DEADLINE
    coordinator.offer(update("c", 7))
    assert coordinator.closes_at(101.0) == 101.0, "b was not there in the last round"


# --- settings that cannot work -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"quorum": 0}, "a quorum of 0 is no quorum: take 1 or more."),
        ({"quorum": -2}, "a quorum of -2 is no quorum: take 1 or more."),
        ({"deadline_seconds": 0.0}, "a deadline of 0.0 seconds is none: take more than 0."),
        ({"deadline_seconds": -1.0}, "a deadline of -1.0 seconds is none: take more than 0."),
        ({"deadline_seconds": math.nan}, "a deadline of nan seconds is none: take more than 0."),
        ({"rounds": 0}, "0 rounds are no training: take 1 or more."),
        ({"rounds": -1}, "-1 rounds are no training: take 1 or more."),
        ({"mode": "both"}, "mode 'both' is none of sync, async."),
        ({"staleness": "old"}, "staleness 'old' is none of polynomial, none."),
    ],
)
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    settings: dict[str, Any] = {"mode": "sync", "merge": MergeRule("mean"), "optimizer": Delta()}
    with pytest.raises(SettingsRefused) as caught:
        Settings(**settings | wrong)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("rule", "quorum"),
    [
        (MergeRule("median"), 3),
        (MergeRule("trimmed-mean", byzantine=2), 5),
        (MergeRule("multi-krum", byzantine=1), 5),
    ],
    ids=["median", "trimmed-mean", "multi-krum"],
)
def test_a_quorum_below_what_the_rule_needs_is_refused(rule: MergeRule, quorum: int) -> None:
    Settings(mode="sync", merge=rule, optimizer=Delta(), quorum=quorum)
    with pytest.raises(SettingsRefused) as caught:
        Settings(mode="sync", merge=rule, optimizer=Delta(), quorum=quorum - 1)
    text = str(caught.value)
    assert text.startswith(f"the quorum of {quorum - 1} is too low: merge '{rule.name}' ")
    assert f"needs at least {quorum} devices" in text


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_norm_that_cannot_work_is_refused(norm: float) -> None:
    with pytest.raises(MergeRefused, match=rf"^clip_norm must be .* above 0, not {norm}\.$"):
        Bounds(clip_norm=norm)


# --- against a slow plain model ------------------------------------------------------------------


class PlainFleet:
    """What a synchronous fleet should do, with lists and float64, one step at a time."""

    def __init__(self, merge: str, quorum: int) -> None:
        self.merge, self.quorum = merge, quorum
        self.theta: dict[str, npt.NDArray[np.float64]] = {n: np.zeros(s) for n, s in SHAPES.items()}
        self.round = 0
        self.last: dict[str, tuple[int, str]] = {}
        self.last_at_merge: dict[str, tuple[int, str]] = {}
        self.inside: list[Update] = []  # the open round
        self.present: set[str] = set()
        self.deadline = DEADLINE

    def judge(self, sent: Update) -> Outcome | Reason:
        if self.last.get(sent.device) == (sent.round, sent.nonce):
            return Outcome.DUPLICATE
        if sent.round != self.round:
            return Reason.LATE if sent.round < self.round else Reason.EARLY
        if any(other.device == sent.device for other in self.inside):
            return Reason.SECOND
        self.inside.append(sent)
        self.last[sent.device] = sent.round, sent.nonce
        return Outcome.ACCEPTED

    def is_due(self, now: float) -> bool:
        senders = {sent.device for sent in self.inside}
        complete = len(senders) >= self.quorum and not self.present - senders
        return complete or now >= self.deadline

    def close(self, now: float) -> bool:
        self.deadline = now + DEADLINE
        if len(self.inside) < self.quorum:
            return False
        for name in SHAPES:
            held = [sent for sent in self.inside if name in sent.tensors]
            if held:
                weights = [sent.samples if self.merge == "samples" else 1 for sent in held]
                total = sum(
                    w * s.tensors[name].astype(float) for w, s in zip(weights, held, strict=True)
                )
                divisor = 1 if self.merge == "sum" else sum(weights)
                self.theta[name] = self.theta[name] + total / divisor
        self.round += 1
        self.present &= {sent.device for sent in self.inside}  # who was waited for in vain
        self.inside = []
        self.last_at_merge = dict(self.last)
        return True

    def restart(self, now: float) -> None:
        self.present = {d for d, (r, _) in self.last_at_merge.items() if r >= self.round - 1}
        self.deadline = now + DEADLINE


class SynchronousFleet(RuleBasedStateMachine):
    """Random devices, updates, repetitions, restarts and times, beside the plain model."""

    accepted: Any = Bundle("accepted")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.count = 0

    @initialize(merge=st.sampled_from(["sum", "mean", "samples"]), quorum=st.integers(1, 3))
    def begin(self, merge: str, quorum: int) -> None:
        self.settings = how(merge, quorum=quorum)
        self.plain = PlainFleet(merge, quorum)
        self.real = start(self.settings)
        self.snapshot = copy.deepcopy(self.real.state)
        self.journal: list[Update] = []

    @rule(device=st.sampled_from("abcde"))
    def join(self, device: str) -> None:
        self.real.join(device)
        self.plain.present.add(device)

    @rule(device=st.sampled_from("abcde"))
    def leave(self, device: str) -> None:
        self.real.leave(device)
        self.plain.present.discard(device)

    @rule(
        target=accepted,
        device=st.sampled_from("abcde"),
        names=st.sampled_from(CASCADE),
        samples=st.integers(1, 10**6),
        distance=st.sampled_from([0, 0, 0, 0, -1, 1]),
    )
    def send(self, device: str, names: tuple[str, ...], samples: int, distance: int) -> Any:
        self.count += 1
        sent = update(
            device,
            max(0, self.plain.round + distance),
            f"nonce-{self.count}",
            samples=samples,
            tensors=draw(self.count, names),
        )
        outcome = self.offer(sent)
        return sent if outcome is Outcome.ACCEPTED else multiple()

    @rule(sent=accepted)
    def send_again(self, sent: Update) -> None:
        assert self.offer(sent) is not Outcome.ACCEPTED, "no update counts twice"

    @rule(sent=consumes(accepted))
    def send_under_another_nonce(self, sent: Update) -> None:
        again = update(sent.device, sent.round, "another", tensors=sent.tensors)
        assert self.offer(again) in (Reason.SECOND, Reason.LATE)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.plain.is_due(self.now))
    @rule()
    def close(self) -> None:
        devices = len(self.plain.inside)
        merged = self.plain.close(self.now)
        before = self.real.state.shared
        closed = self.real.close(self.now)
        assert (closed.merged, closed.devices) == (merged, devices)
        if merged:
            self.snapshot, self.journal = copy.deepcopy(self.real.state), []
        else:
            assert self.real.state.shared is before

    @rule()
    def restart(self) -> None:
        """As the aggregator does it: the snapshot of the last merge, then the journal."""
        before = self.real.state
        self.real = Synchronous(self.settings, copy.deepcopy(self.snapshot), self.now)
        for sent in self.journal:
            assert self.real.offer(sent) is Outcome.ACCEPTED
        self.plain.restart(self.now)
        assert_same(self.real.state, before)

    def offer(self, sent: Update) -> Outcome | Reason:
        expected = self.plain.judge(sent)
        try:
            found: Outcome | Reason = self.real.offer(sent)
        except Refused as refused:
            found = refused.reason
        assert found == expected
        if found is Outcome.ACCEPTED:
            self.journal.append(sent)
        return found

    @invariant()
    def theta_is_the_models(self) -> None:
        for name, value in self.real.state.shared.items():
            np.testing.assert_allclose(value, self.plain.theta[name], rtol=1e-6, atol=1e-6)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.real.state.round == self.plain.round
        ledger = self.real.state.ledger
        assert {d: (e.round, e.nonce) for d, e in ledger.items()} == self.plain.last
        for sent in self.plain.inside:
            entry = ledger[sent.device]
            assert (entry.samples, entry.tensors) == (sent.samples, tuple(sorted(sent.tensors)))

    @invariant()
    def it_is_due_when_the_model_is(self) -> None:
        assert (self.real.closes_at(self.now) <= self.now) == self.plain.is_due(self.now)
        if not self.plain.is_due(self.now):
            assert self.real.closes_at(self.now) == self.plain.deadline


TestSynchronousFleet = SynchronousFleet.TestCase
TestSynchronousFleet.settings = hypothesis_settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
