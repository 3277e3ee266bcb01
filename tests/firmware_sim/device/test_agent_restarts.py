"""An agent that was stopped and started again continues as if it had not been."""

import numpy as np
import pytest

from firmware_sim.training.checkpoint import Checkpoint
from tests.firmware_sim.device.world import (
    STEPS,
    World,
    frozen,
    once,
    plain_replay,
    start_of,
    straight,
)


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("reading", [3, 4, 8], ids=["at a step", "at the last step", "next round"])
def test_a_stopped_device_goes_on_as_if_nothing_had_happened(
    world: World, mode: str, exchange: str, reading: int
) -> None:
    """The clock of a round is read at its start, after each of 3 steps, and at its end."""
    expected = straight(world, mode, exchange)
    world.serve(mode, exchange=exchange)
    readings = iter(range(1, 10**6))

    def clock() -> float:
        if next(readings) == reading:
            first.rounds.stop()
        return world.now

    first = world.device(clock=clock)
    first.run_until_stopped()
    second = world.device()
    second.run()
    nonces = {update.nonce for update in world.updates()}
    assert len(nonces) == 3, "no round was trained twice"
    state = frozen(second.rounds.learner.state())
    assert (frozen(dict(world.final().tensors)), state) == expected


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_update_that_was_trained_is_delivered_after_a_restart(world: World, mode: str) -> None:
    """Stopped while it waits for the verdict, which the link has lost."""
    expected, _ = straight(world, mode, "delta")
    world.serve(mode)
    first = world.device()
    world.loses = lambda packet: bool(world.updates())  # the link brings nothing more
    world.at_turn = once(lambda world: bool(world.updates()), lambda world: first.rounds.stop())
    first.run_until_stopped()
    world.loses = lambda packet: False
    second = world.device()
    second.run()
    updates = world.updates()
    assert updates[0].nonce == updates[1].nonce
    assert [update.round for update in updates] == [0, 0, 1, 2]
    assert frozen(dict(world.final().tensors)) == expected


def stopped_in_round_0_and_left_behind(world: World, exchange: str) -> Checkpoint:
    """A device takes one step of round 0 and is away when the others merge it."""
    world.serve("sync", exchange=exchange)

    def clock() -> float:
        first.rounds.stop()
        return world.now

    first = world.device(clock=clock)
    first.run_until_stopped()
    world.send_nothing_as("pi-2", 0, exchange)
    while world.aggregator is not None and world.aggregator.state.round == 0:
        world.turn()
    left = world.checkpoint()
    assert (left.round, left.steps_done) == (0, 1)
    return left


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_a_device_that_was_away_goes_on_with_the_round_that_is_open(
    world: World, exchange: str
) -> None:
    stopped_in_round_0_and_left_behind(world, exchange)
    world.device().run()
    updates = world.updates()
    assert [update.round for update in updates] == [1, 2]
    expected = plain_replay(start_of(world.bundle), updates, "sync", exchange)
    for name, value in world.final().tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_what_was_learnt_for_a_lost_round_is_not_sent_in_another(
    world: World, exchange: str
) -> None:
    """θ_local keeps what it learnt from it; an update holds the steps of its own round."""
    left = stopped_in_round_0_and_left_behind(world, exchange)
    world.device().run()
    alone = world.device("alone").rounds.learner
    alone.restore(left.learner)
    alone.learnt(left.base, exchange)  # and thrown away
    alone.adopt(start_of(world.bundle))  # to which the others added nothing
    base = alone.shared()
    list(alone.train(STEPS, exchange))
    assert frozen(alone.learnt(base, exchange)) == frozen(dict(world.updates()[0].tensors))


def test_the_link_may_come_late(world: World) -> None:
    world.memory.stop()
    world.serve(rounds=1)
    world.at_turn = once(lambda world: world.turns == 5, lambda world: world.memory.start())
    world.device().run()
    assert len(world.updates()) == 1
