"""What a device may act upon: rounds, epochs, states, and how far θ_shared may move."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocol.messages import AggregatorState, Shared
from broker.protocol.slice import Tensors
from firmware_sim.device.plausibility import (
    JUMPS,
    Plausibility,
    Scale,
    check_state,
    norm,
    rounds_between,
)
from firmware_sim.errors import Implausible
from firmware_sim.training.checkpoint import Trusted

SHAPES = {"kernel": (8, 16), "bias": (16,)}


def initial(seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)
    kernel = 0.1 * rng.standard_normal(SHAPES["kernel"])
    return {"kernel": kernel.astype(np.float32), "bias": np.zeros(16, np.float32)}


def state(round: int = 0, *, instance: str = "i") -> AggregatorState:
    return AggregatorState(
        status="online", run="r", mode="sync", exchange="delta", round=round, instance=instance
    )


def message(round: int, tensors: Tensors) -> Shared:
    return Shared(run="r", round=round, fingerprint="f", tensors=tensors)


class Trained:
    """A device that adopts everything it finds plausible."""

    def __init__(self) -> None:
        self.trusted = Trusted()
        self.rules = Plausibility(Scale.of(initial()), self.trusted)

    def take(self, round: int, tensors: Tensors, *, confirmed: int = 0) -> None:
        shared, said = message(round, tensors), state(confirmed)
        self.rules.check(shared, tensors, said)
        self.rules.adopted(shared, tensors, said)

    def train(self, rounds: int, step: float = 0.05) -> Tensors:
        """Rounds that each move every tensor by `step` of the initial kernel's norm."""
        theta, rng = initial(), np.random.default_rng(1)
        for round in range(rounds):
            self.take(round, theta)
            theta = moved(theta, step, rng)
        return theta


def moved(theta: Tensors, step: float, rng: np.random.Generator) -> Tensors:
    """θ after a jump of `step` times what the numbers of the initial kernel amount to."""
    found = {}
    for name, value in theta.items():
        direction = rng.standard_normal(value.shape).astype(np.float32)
        size = step * 0.1 * math.sqrt(value.size)
        found[name] = value + np.float32(size) * direction / np.float32(norm(direction))
    return found


@given(
    steps=st.lists(st.floats(0.0, 0.2), min_size=4, max_size=30),
    gaps=st.lists(st.integers(1, 100), min_size=30, max_size=30),
    lag=st.integers(0, 100),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_training_at_any_usual_pace_is_plausible(
    steps: list[float], gaps: list[int], lag: int, seed: int
) -> None:
    """Also with rounds missed, and when the aggregator's state is up to 100 rounds old."""
    device, rng = Trained(), np.random.default_rng(seed)
    theta, round = initial(), 0
    for step, gap in zip(steps, gaps, strict=False):
        device.take(round, theta, confirmed=max(0, round - lag))
        round += gap
        theta = moved(theta, step, rng)


@given(first=st.floats(0.3, 7.0), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_the_first_rounds_may_move_most(first: float, seed: int) -> None:
    """Before there is a history; and what follows them is judged by them."""
    device, rng = Trained(), np.random.default_rng(seed)
    theta = initial()
    for round, step in enumerate((0.0, first, first, first, 2 * first, first / 2, 0.1)):
        theta = moved(theta, step, rng)
        device.take(round, theta)


@given(
    scale=st.floats(0.2, 1e30),
    beyond=st.integers(1, 1000),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_noise_is_never_plausible_whatever_round_it_claims(
    scale: float, beyond: int, seed: int
) -> None:
    device = Trained()
    device.train(10)
    rng = np.random.default_rng(seed)
    noise = {n: (scale * rng.standard_normal(s)).astype(np.float32) for n, s in SHAPES.items()}
    with pytest.raises(Implausible):
        device.take(9 + beyond, noise)


def test_another_network_of_the_same_size_is_not_plausible() -> None:
    device = Trained()
    device.train(10)
    with pytest.raises(Implausible, match=r"^tensor 'kernel' of θ_shared moved by "):
        device.take(10, initial(7))


def test_the_very_first_one_is_bounded_by_the_initial_weights() -> None:
    device = Trained()
    with pytest.raises(Implausible, match=r"^tensor 'kernel' of θ_shared is "):
        device.take(0, {n: np.ones(s, np.float32) for n, s in SHAPES.items()})
    device.take(0, {n: 0.5 * np.ones(s, np.float32) for n, s in SHAPES.items()})


def test_a_device_that_was_away_follows_the_fleet() -> None:
    device = Trained()
    theta = device.train(10)
    far = moved(theta, 3.0, np.random.default_rng(2))
    with pytest.raises(Implausible):
        device.take(110, far, confirmed=9)
    device.take(110, far, confirmed=100)


@pytest.mark.parametrize(
    ("last", "round", "confirmed", "n"),
    [
        (5, 6, 5, 1.0),
        (5, 6, 0, 1.0),
        (5, 3, 3, 1.0),
        (5, 105, 105, 100.0),
        (5, 105, 0, math.log10(901)),
        (5, 1005, 5, math.log10(9001)),
        (0, 30, 20, 20 + math.log10(91)),
    ],
)
def test_rounds_count_in_full_only_where_the_state_confirms_them(
    last: int, round: int, confirmed: int, n: float
) -> None:
    assert rounds_between(last, round, confirmed) == pytest.approx(n)


def test_rounds_are_bounded() -> None:
    device = Trained()
    theta = device.train(10)
    for round in (-1, 2**53, 10**6, 1010):
        with pytest.raises(Implausible, match="round"):
            device.take(round, theta)
    device.take(1009, theta)
    device.take(5000, theta, confirmed=4000)


def test_an_aggregator_of_an_earlier_version_says_no_round() -> None:
    rules = Plausibility(Scale.of(initial()), Trusted())
    rules.check(message(10**6, initial()), initial(), state(instance=""))
    with pytest.raises(Implausible):
        rules.check(message(2**53, initial()), initial(), state(instance=""))


def test_an_honest_jump_is_waited_out_by_asking() -> None:
    """Each time that the device asks in vain doubles the bound; adopting makes it narrow again."""
    device = Trained()
    theta = device.train(10)
    far = moved(theta, 3.0, np.random.default_rng(2))
    device.rules.asked()
    asked = 0
    while asked < 20:
        try:
            device.take(10, far)
            break
        except Implausible:
            device.rules.asked()
            asked += 1
    assert 1 <= asked <= 5
    with pytest.raises(Implausible):
        device.take(11, moved(far, 99.0, np.random.default_rng(3)))


def test_the_history_of_one_run_is_none_of_another() -> None:
    device = Trained()
    device.train(10)
    other = Shared(run="other", round=0, fingerprint="f", tensors=initial(7))
    device.rules.check(other, other.tensors, state())
    device.rules.adopted(other, other.tensors, state())
    assert (device.trusted.run, device.trusted.jumps) == ("other", {})


def test_only_some_jumps_are_kept() -> None:
    device = Trained()
    device.train(JUMPS + 9)
    assert {len(jumps) for jumps in device.trusted.jumps.values()} == {JUMPS}


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "x"},
        {"mode": "x"},
        {"exchange": "x"},
        {"round": -1},
        {"round": 2**53},
        {"epoch": -1},
        {"epoch": 2**40 + 1},
    ],
    ids=str,
)
def test_a_state_says_what_an_aggregator_may(wrong: dict[str, object]) -> None:
    with pytest.raises(Implausible, match=r"^the aggregator's state says what no aggregator does"):
        check_state(AggregatorState(**{**vars(state()), **wrong}), None)


def test_a_run_keeps_its_mode_and_its_exchange() -> None:
    known = state()
    for change in ({"mode": "async"}, {"exchange": "gradient"}):
        changed = {**vars(known), **change}
        with pytest.raises(Implausible, match="changes the mode or the exchange of its run"):
            check_state(AggregatorState(**changed), known)
        check_state(AggregatorState(**{**changed, "run": "other"}), known)
