"""What a device believes of its fleet, in whatever order it hears it."""

import itertools

import numpy as np
import pytest

from broker.errors import WireError
from broker.protocol.messages import AggregatorState, Shared, Verdict, to_bytes
from broker.protocol.topics import Topics
from firmware_sim.device.fleet_view import FleetView
from firmware_sim.errors import Implausible

TOPICS = Topics("greenhouse")
LIMIT = 2**20


@pytest.fixture
def view() -> FleetView:
    return FleetView("pi-1", TOPICS, limit=LIMIT, fingerprint="mine")


def aggregator(run: str, status: str = "online") -> tuple[str, bytes]:
    state = AggregatorState(status=status, run=run, mode="sync", exchange="delta")
    return TOPICS.aggregator_state, to_bytes(state)


def shared(run: str, round: int, *, last: bool = False) -> tuple[str, bytes]:
    theta = {"w": np.full(2, round, np.float32)}
    message = Shared(run=run, round=round, fingerprint="f", last=last, tensors=theta)
    return TOPICS.shared, to_bytes(message)


def reply(run: str, round: int) -> tuple[str, bytes]:
    return TOPICS.reply("pi-1"), shared(run, round)[1]


def verdict(run: str, about: str, *, accepted: bool = True, nonce: str = "") -> tuple[str, bytes]:
    message = Verdict(device="pi-1", about=about, run=run, accepted=accepted, nonce=nonce)
    return TOPICS.verdict("pi-1"), to_bytes(message)


def take(view: FleetView, *messages: tuple[str, bytes]) -> None:
    for topic, payload in messages:
        view.take(topic, payload)


def theta(view: FleetView) -> tuple[str, int] | None:
    return None if view.shared is None else (view.shared.run, view.shared.round)


def test_at_first_nothing_is_known(view: FleetView) -> None:
    assert (view.aggregator, view.shared, view.join, view.verdict) == (None, None, None, None)
    assert not view.joined


def test_theta_counts_once_the_aggregator_has_said_its_run(view: FleetView) -> None:
    take(view, shared("run-1", 3))
    assert view.shared is None
    take(view, aggregator("run-1"))
    assert theta(view) == ("run-1", 3)
    found = view.shared
    assert found is not None
    np.testing.assert_array_equal(found.tensors["w"], [3, 3])


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))], ids=str)
def test_the_newest_theta_wins_in_any_order(view: FleetView, order: tuple[int, ...]) -> None:
    messages = [aggregator("run-1"), shared("run-1", 4), reply("run-1", 5), shared("run-1", 4)]
    take(view, *(messages[i] for i in order))
    assert theta(view) == ("run-1", 5)


def test_the_last_one_replaces_the_same_round(view: FleetView) -> None:
    take(view, aggregator("run-1"), shared("run-1", 4), shared("run-1", 4, last=True))
    assert view.shared is not None
    assert view.shared.last
    take(view, shared("run-1", 4))
    assert view.shared.last, "what comes twice does not take it back"


def test_what_an_old_run_left_behind_is_ignored(view: FleetView) -> None:
    take(view, aggregator("run-2"), shared("run-1", 90, last=True))
    assert view.shared is None
    take(view, shared("run-2", 0), shared("run-1", 91), shared("run-0", 92), reply("run-1", 93))
    assert theta(view) == ("run-2", 0)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_a_new_run_is_followed_in_any_order(view: FleetView, order: tuple[int, ...]) -> None:
    """Its θ_shared may come before the word that there is a new run, and is sent only once."""
    take(view, aggregator("run-1"), shared("run-1", 7), verdict("run-1", "join"))
    new = [aggregator("run-2"), shared("run-2", 0), verdict("run-2", "join")]
    take(view, *(new[i] for i in order))
    assert theta(view) == ("run-2", 0)
    assert view.joined


def test_of_other_runs_only_one_is_held(view: FleetView) -> None:
    take(view, aggregator("run-1"), shared("run-1", 7))
    take(view, *(shared(f"old-{k}", k) for k in range(50)))
    assert theta(view) == ("run-1", 7)
    take(view, aggregator("old-48"))
    assert view.shared is None
    take(view, shared("old-48", 1), aggregator("run-1"))
    assert view.shared is None, "the run that was left is forgotten"


def test_a_death_and_a_return_change_nothing(view: FleetView) -> None:
    take(view, aggregator("run-1"), shared("run-1", 7), verdict("run-1", "join"))
    for status in ("offline", "online", "finished"):
        take(view, aggregator("run-1", status))
        assert view.aggregator is not None
        assert view.aggregator.status == status
        assert (theta(view), view.joined) == (("run-1", 7), True)


def test_only_this_runs_aggregator_can_let_a_device_in(view: FleetView) -> None:
    take(view, verdict("run-1", "join"))
    assert not view.joined, "there is no aggregator yet"
    take(view, aggregator("run-2"))
    assert not view.joined, "that was another run"
    take(view, verdict("run-2", "join", accepted=False))
    assert not view.joined
    take(view, verdict("run-2", "join"))
    assert view.joined


def test_verdicts_about_updates_and_births_are_kept_apart(view: FleetView) -> None:
    take(view, verdict("run-1", "join"), verdict("run-1", "update", accepted=False, nonce="n"))
    assert view.join is not None
    assert view.verdict is not None
    assert (view.join.accepted, view.verdict.accepted, view.verdict.nonce) == (True, False, "n")
    take(view, verdict("run-1", "update", nonce="m"))
    assert view.verdict.nonce == "m"


def test_what_is_not_for_this_device_is_ignored(view: FleetView) -> None:
    take(
        view,
        aggregator("run-1"),
        (TOPICS.reply("pi-2"), shared("run-1", 3)[1]),
        (TOPICS.verdict("pi-2"), verdict("run-1", "join")[1]),
        ("somewhere/else", b"anything"),
    )
    assert view.shared is None
    assert view.join is None


def test_garbage_is_refused_and_changes_nothing(view: FleetView) -> None:
    take(view, aggregator("run-1"), shared("run-1", 7), verdict("run-1", "join"))
    garbage: list[tuple[str, bytes]] = [
        (topic, payload)
        for topic in (
            TOPICS.aggregator_state,
            TOPICS.shared,
            TOPICS.reply("pi-1"),
            TOPICS.verdict("pi-1"),
        )
        for payload in (b"", b"garbage", shared("run-1", 8)[1][:-1], bytes(LIMIT + 1))
    ]
    garbage += [(TOPICS.shared, aggregator("run-2")[1]), (TOPICS.verdict("pi-1"), b"{}")]
    for topic, payload in garbage:
        with pytest.raises(WireError):
            view.take(topic, payload)
        assert (theta(view), view.joined) == (("run-1", 7), True)


def test_a_verdict_about_an_earlier_bundle_is_not_about_this_one(view: FleetView) -> None:
    take(view, aggregator("run-1"), verdict("run-1", "join", accepted=False, nonce="another"))
    assert view.join is None
    take(view, verdict("run-1", "join", nonce="another"))
    assert not view.joined
    # A birth that could not be read has no fingerprint that a verdict could repeat.
    take(view, verdict("run-1", "join", accepted=False))
    assert view.join is not None
    take(view, verdict("run-1", "join", nonce="mine"))
    assert view.joined


def test_an_implausible_theta_leaves_the_one_before() -> None:
    def judge(shared: Shared, state: AggregatorState) -> None:
        if shared.round == 9:
            raise Implausible("no.")

    view = FleetView("pi-1", TOPICS, limit=2**20, fingerprint="f", judge=judge)
    view.take(TOPICS.aggregator_state, to_bytes(AggregatorState(status="online", run="r")))
    view.take(TOPICS.shared, to_bytes(Shared(run="r", round=1, fingerprint="f")))
    with pytest.raises(Implausible):
        view.take(TOPICS.shared, to_bytes(Shared(run="r", round=9, fingerprint="f")))
    assert view.shared is not None and view.shared.round == 1
