"""An agent survives lost messages, outages of the broker and new runs of the aggregator."""

import numpy as np
import pytest

from broker.transport.transport import Packet
from tests.firmware_sim.device.world import TOPICS, World, once, plain_replay, start_of


def test_a_missed_round_is_left_behind(world: World) -> None:
    """While it trains round 0, the deadline passes and round 0 is merged without it."""
    world.serve(deadline_seconds=30.0)

    def slow() -> float:
        if not world.updates("pi-2"):
            world.send_nothing_as("pi-2", 0)
            world.now += 31.0
            assert world.aggregator is not None
            while world.aggregator.state.round == 0:
                world.aggregator.poll()
        return world.now

    world.device(clock=slow).run()
    assert [update.round for update in world.updates()] == [0, 1, 2]
    assert [v.accepted for v in world.verdicts()] == [False, True, True]
    assert world.verdicts()[0].reason == "late"
    counted = [u for u in world.updates() if u.round > 0]
    expected = plain_replay(start_of(world.bundle), counted, "sync", "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_lost_verdict_is_asked_for_again_and_counts_once(world: World, mode: str) -> None:
    """The update is sent again under the same nonce; the second device holds the round open."""
    world.serve(mode, "sum", rounds=2, quorum=2 if mode == "sync" else 1)
    lost: list[Packet] = []

    def loses(packet: Packet) -> bool:
        about = packet.topic == TOPICS.verdict("pi-1") and b'about\\":\\"update' in packet.payload
        if about and not lost:
            lost.append(packet)
            return True
        return False

    def others(world: World) -> None:
        current = world.aggregator.state.round if world.aggregator else 0
        again = len(world.updates()) >= 2 and current == len(world.updates("pi-2")) < 2
        if mode == "sync" and again:
            world.send_nothing_as("pi-2", current)

    world.loses, world.at_turn = loses, others
    world.device().run()
    updates = world.updates()
    assert lost
    assert [update.round for update in updates] == [0, 0, 1]
    assert updates[0].nonce == updates[1].nonce != updates[2].nonce
    assert [event["round"] for event in world.events("resending")] == [0]
    assert [v.accepted for v in world.verdicts()] == [True, True, True]
    expected = plain_replay(start_of(world.bundle), updates[1:], mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("forget", [False, True], ids=["with persistence", "without"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_outage_of_the_broker_is_survived(world: World, mode: str, forget: bool) -> None:
    world.serve(mode)

    def outage(world: World) -> None:
        world.memory.stop(forget=forget)
        world.memory.start()

    world.at_turn = once(lambda world: len(world.updates()) == 2, outage)
    agent = world.device()
    agent.run()
    assert len(world.events("connected")) == 2
    assert len(world.events("disconnected")) == 1
    rounds = [update.round for update in world.updates()]
    assert sorted({*rounds}) == [0, 1, 2]
    unique = list({update.nonce: update for update in world.updates()}.values())
    assert len(unique) == 3
    expected = plain_replay(start_of(world.bundle), unique, mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_aggregator_that_is_killed_goes_on_with_the_same_run(world: World, mode: str) -> None:
    world.serve(mode)
    world.at_turn = once(lambda world: len(world.updates()) == 2, lambda world: world.serve(mode))
    world.device().run()
    unique = {update.nonce: update for update in world.updates()}
    assert [update.round for update in unique.values()] == [0, 1, 2]
    assert world.final().run == "run-1"
    expected = plain_replay(start_of(world.bundle), list(unique.values()), mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_new_run_of_the_aggregator_is_followed(world: World, mode: str) -> None:
    """The aggregator has lost its folder in the middle, and starts a run of its own."""
    world.serve(mode)
    world.at_turn = once(
        lambda world: len(world.updates()) == 2,
        lambda world: world.serve(mode, run="run-2", rounds=2),
    )
    world.device().run()
    unique = list({update.nonce: update for update in world.updates()}.values())
    assert [(u.run, u.round) for u in unique] == [
        ("run-1", 0), ("run-1", 1), ("run-2", 0), ("run-2", 1),
    ]  # fmt: skip
    assert (world.final().run, world.final().round) == ("run-2", 2)
    expected = plain_replay(start_of(world.bundle), unique[2:], mode, "delta")
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)
