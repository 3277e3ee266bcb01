"""What forged messages do to a device that has no key, and to one that has: nothing for good.

A fleet of one device learns digits over a broker in memory. An attacker may write on every topic.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.aggregator.signing import Signing
from broker.protocol.messages import AggregatorState, Reason, Shared, Verdict, from_bytes, to_bytes
from broker.protocol.slice import Tensors
from firmware_sim.errors import FleetRefused
from tests.firmware_sim.device.world import LIMIT, TOPICS, World, frozen, once, start_of

ROUNDS = 8


def key_pair() -> Signing:
    key = Ed25519PrivateKey.generate()
    return Signing(key, key.public_key().public_bytes_raw())


def noise(world: World, size: float) -> Tensors:
    rng = np.random.default_rng(0)
    start = start_of(world.bundle)
    return {n: (size * rng.standard_normal(v.shape)).astype(np.float32) for n, v in start.items()}


def shared(round: int, tensors: Tensors, *, last: bool = False) -> bytes:
    message = Shared(run="run-1", round=round, fingerprint="f", last=last, tensors=tensors)
    return to_bytes(message)


def after(round: int, act: Callable[[World], None]) -> Callable[[World], None]:
    """Attacks once, when the device has sent its update of that round."""
    return once(lambda world: len(world.updates()) > round, act)


def learnt(world: World) -> list[dict[str, bytes]]:
    return [frozen(dict(update.tensors)) for update in world.updates()]


def undisturbed(world: World) -> list[dict[str, bytes]]:
    """The updates of a device that nobody attacks."""
    other = World(world.folder / "undisturbed", world.bundle)
    other.serve(rounds=ROUNDS)
    other.device().run()
    other.end()
    return learnt(other)


@pytest.mark.parametrize("round", [5, 6, 900, 10**6, -1, 2**60])
@pytest.mark.parametrize("last", [False, True])
def test_noise_in_place_of_theta_changes_nothing(world: World, round: int, last: bool) -> None:
    world.serve(rounds=ROUNDS)
    forged = shared(round, noise(world, 1.0), last=last)

    def attack(world: World) -> None:
        world.spy.publish(TOPICS.shared, forged, retain=True)
        world.spy.publish(TOPICS.reply("pi-1"), forged)

    world.at_turn = after(4, attack)
    world.device().run()
    assert learnt(world) == undisturbed(world)


def test_a_last_theta_counts_only_with_the_aggregators_state(world: World) -> None:
    """Even if it is the true one with one word changed."""
    world.serve(rounds=ROUNDS)

    def attack(world: World) -> None:
        newest = from_bytes(Shared, world.said(TOPICS.shared)[-1], limit=LIMIT)
        forged = shared(newest.round + 1, newest.tensors, last=True)
        world.spy.publish(TOPICS.shared, forged, retain=True)

    world.at_turn = after(2, attack)
    world.device().run()
    assert len(world.updates()) == ROUNDS
    assert world.checkpoint().round == ROUNDS


@pytest.mark.parametrize(
    "forged",
    [
        b"garbage",
        b"",
        {"status": "offline"},
        {"status": "offline", "epoch": 2**40},
        {"run": "another", "epoch": 2**40},
        {"status": "finished", "run": "another"},
        {"exchange": "gradient", "epoch": 7},
        {"mode": "async"},
        {"round": 2**50},
    ],
    ids=str,
)
def test_a_forged_state_stops_nobody(world: World, forged: bytes | dict[str, Any]) -> None:
    world.serve(rounds=ROUNDS)

    def attack(world: World) -> None:
        if isinstance(forged, bytes):
            payload = forged
        else:
            true = from_bytes(AggregatorState, world.said(TOPICS.aggregator_state)[-1])
            payload = to_bytes(AggregatorState(**{**vars(true), **forged}))
        world.spy.publish(TOPICS.aggregator_state, payload, retain=True)

    world.at_turn = after(2, attack)
    world.device().run()
    assert learnt(world) == undisturbed(world)


@pytest.mark.parametrize("about", ["join", "update"])
def test_a_forged_refusal_ends_nobody(world: World, about: str) -> None:
    world.serve(rounds=ROUNDS)

    def attack(world: World) -> None:
        update = world.updates()[-1]
        nonce = update.nonce if about == "update" else update.fingerprint
        forged = Verdict(
            device="pi-1",
            about=about,
            run="run-1",
            accepted=False,
            nonce=nonce,
            reason=Reason.WRONG_FINGERPRINT,
            text="export the bundle again.",
        )
        for _ in range(5):
            world.spy.publish(TOPICS.verdict("pi-1"), to_bytes(forged))

    world.at_turn = after(2, attack)
    world.device().run()
    rounds = [update.round for update in world.updates()]
    assert sorted(set(rounds)) == list(range(ROUNDS))
    assert len({update.nonce for update in world.updates()}) == ROUNDS


def test_a_plausible_round_that_the_fleet_is_not_in_is_left_again(world: World) -> None:
    """The aggregator refuses the update as early; the device asks for the true θ_shared."""
    world.serve(rounds=ROUNDS)

    def attack(world: World) -> None:
        newest = from_bytes(Shared, world.said(TOPICS.shared)[-1], limit=LIMIT)
        world.spy.publish(TOPICS.shared, shared(newest.round + 50, newest.tensors), retain=True)

    world.at_turn = after(2, attack)
    world.device().run()
    rounds = [update.round for update in world.updates()]
    assert sorted(set(rounds) - set(range(ROUNDS))) in ([52], [53])
    assert [event["reason"] for event in world.events("refused")] == ["early"]


def test_what_is_ignored_is_counted_and_logged_once_in_a_while(world: World) -> None:
    world.serve(rounds=ROUNDS)

    def attack(world: World) -> None:
        for k in range(50):
            world.spy.publish(TOPICS.shared, shared(4 + k, noise(world, 1.0)))

    world.at_turn = after(2, attack)
    world.device().run()
    (ignored,) = world.events("ignored")
    assert ignored["text"].startswith("tensor ")
    metrics = world.said(TOPICS.metrics("pi-1"))[-1].decode().splitlines()
    assert "stemshare_device_ignored_implausible 50" in metrics
    assert "stemshare_device_ignored_unsigned 0" in metrics


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("exchange", ["delta", "gradient"])
@pytest.mark.parametrize("downlink", ["float32", "float16"])
def test_nothing_of_honest_training_is_ignored(
    world: World, mode: str, exchange: str, downlink: str
) -> None:
    """The first rounds move most: from chance (0.12) to nine of ten digits with `delta`."""
    rounds, steps = (10, 100) if exchange == "delta" else (40, 3)
    world.serve(mode, exchange=exchange, downlink=downlink, rounds=rounds)
    scores = world.device(steps=steps).run()
    assert world.events("ignored") == []
    assert world.events("score_collapsed") == []
    assert scores["accuracy"] > (0.8 if exchange == "delta" else 0.2)


def test_a_device_that_was_away_for_a_hundred_rounds_comes_back_at_once(world: World) -> None:
    world.serve(rounds=106, deadline_seconds=0.5)
    device = world.device(steps=20)
    world.at_turn = after(4, lambda world: device.rounds.stop())
    device.run_until_stopped()
    assert world.aggregator is not None
    left = world.aggregator.state.round

    def others(world: World) -> None:
        if world.aggregator is None:
            return
        round = world.aggregator.state.round
        if left <= round < left + 100:
            world.send_nothing_as("other", round)

    world.at_turn = others
    while world.aggregator is not None and world.aggregator.state.round < left + 100:
        world.turn()
    world.device(steps=20).run()
    assert world.events("ignored") == []
    assert [update.round for update in world.updates()][-1] == 105


# With a key


def test_a_signed_fleet_learns_as_an_unsigned_one(world: World) -> None:
    signing = key_pair()
    world.serve(rounds=ROUNDS, signing=signing)
    world.device(key=signing.key).run()
    assert learnt(world) == undisturbed(world)
    assert world.events("ignored") == []


@pytest.mark.parametrize("signer", [None, key_pair().signer], ids=["unsigned", "another key"])
def test_what_the_aggregator_did_not_sign_is_ignored(world: World, signer: Any) -> None:
    """Even what would be plausible."""
    signing = key_pair()
    world.serve(rounds=ROUNDS, signing=signing)

    def attack(world: World) -> None:
        newest = from_bytes(Shared, world.said(TOPICS.shared)[-1], limit=LIMIT)
        true = from_bytes(AggregatorState, world.said(TOPICS.aggregator_state)[-1])
        values = {**vars(newest), "round": newest.round + 1, "last": True}
        finished = {**vars(true), "status": "finished", "round": newest.round + 1}
        refusal = Verdict(
            device="pi-1",
            about="join",
            run="run-1",
            accepted=False,
            nonce=world.updates()[-1].fingerprint,
        )
        for topic, message in (
            (TOPICS.aggregator_state, AggregatorState(**finished)),
            (TOPICS.shared, Shared(**values)),
            (TOPICS.verdict("pi-1"), refusal),
        ):
            world.spy.publish(topic, to_bytes(message, topic=topic, signer=signer))

    world.at_turn = after(2, attack)
    world.device(key=signing.key).run()
    assert learnt(world) == undisturbed(world)
    metrics = world.said(TOPICS.metrics("pi-1"))[-1].decode().splitlines()
    assert "stemshare_device_ignored_unsigned 3" in metrics


def test_a_signed_message_counts_only_where_it_was_sent(world: World) -> None:
    """A refusal for another device, moved to this one's topic, is not signed for it."""
    signing = key_pair()
    world.serve(rounds=ROUNDS, signing=signing)
    topic = TOPICS.verdict("pi-2")
    refusal = Verdict(device="pi-2", about="join", run="run-1", accepted=False)
    payload = to_bytes(refusal, topic=topic, signer=signing.signer)
    world.at_turn = after(2, lambda world: world.spy.publish(TOPICS.verdict("pi-1"), payload))
    world.device(key=signing.key).run()
    assert learnt(world) == undisturbed(world)


def test_a_device_with_a_key_says_that_its_aggregator_has_none(world: World) -> None:
    world.serve(rounds=1)
    device = world.device(key=key_pair().key)
    world.at_turn = once(lambda w: bool(w.events("waiting")), lambda w: device.rounds.stop())
    device.run_until_stopped()
    (waiting,) = world.events("waiting")
    assert waiting["reason"] == (
        "the aggregator does not sign with the fleet's key; start it with --signing-key."
    )
    assert world.updates() == []


# Refusals that are meant


def test_a_refusal_that_is_repeated_is_final(world: World) -> None:
    """The aggregator gives the same answer each time that the device asks."""
    world.serve(rounds=1, members=("pi-2",))
    with pytest.raises(FleetRefused) as caught:
        world.device().run()
    assert str(caught.value) == (
        "the aggregator refused this device: 'pi-1' is not in the fleet's list of members."
    )
    refusals = [from_bytes(Verdict, payload) for payload in world.said(TOPICS.verdict("pi-1"))]
    assert [refusal.accepted for refusal in refusals] == [False] * 3


# Held-out scores


@pytest.mark.parametrize("guard", [False, True])
def test_a_device_whose_score_collapses_says_so_and_can_return_to_what_was_good(
    world: World, guard: bool
) -> None:
    """The aggregator itself has a spoilt θ_shared, early enough to be plausible."""
    world.serve(rounds=ROUNDS)
    device = world.device(guard=guard, steps=300)

    def spoil(world: World) -> None:
        assert world.aggregator is not None
        state = world.aggregator.state
        state.shared.update(noise(world, 0.5))

    attack = after(1, spoil)
    stop = once(lambda w: len(w.events("trained")) == 3, lambda w: device.rounds.stop())

    def both(world: World) -> None:
        attack(world)
        stop(world)

    world.at_turn = both
    device.run_until_stopped()
    (collapsed,) = world.events("score_collapsed")
    assert (collapsed["round"], collapsed["good_round"]) == (2, 1)
    assert collapsed["quality"] < 0.5 * collapsed["good_quality"]
    sent = [update.round for update in world.updates()]
    assert sent == ([0, 1] if guard else [0, 1, 2])
    trusted = device.rounds.trusted
    good = from_bytes(Shared, world.said(TOPICS.shared)[1], limit=LIMIT)
    assert (good.round, trusted.round) == (1, 1)
    assert frozen(dict(trusted.tensors)) == frozen(dict(good.tensors))
    last = world.events("evaluated")[-1]["accuracy"]
    assert (last > 0.8) is guard


def test_the_last_good_theta_and_its_history_survive_a_restart(world: World) -> None:
    world.serve(rounds=ROUNDS)
    device = world.device()
    world.at_turn = after(5, lambda world: device.rounds.stop())
    device.run_until_stopped()
    before = device.rounds.trusted
    again = world.device()
    again.rounds.resume()
    found = again.rounds.trusted
    assert found.fields() == before.fields()
    assert len(next(iter(found.jumps.values()))) >= 4
    assert frozen(dict(found.tensors)) == frozen(dict(before.tensors))
