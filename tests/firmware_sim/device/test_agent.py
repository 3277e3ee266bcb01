"""An agent takes part in a fleet from its birth to the last round."""

import numpy as np
import pytest

from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    from_bytes,
    to_bytes,
)
from tests.firmware_sim.device.world import (
    STEPS,
    TOPICS,
    World,
    frozen,
    once,
    plain_replay,
    start_of,
)
from tests.harness.metrics import read_metrics


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_device_takes_part_until_the_last_round(world: World, mode: str, exchange: str) -> None:
    world.serve(mode, exchange=exchange)
    agent = world.device()
    scores = agent.run()
    updates = world.updates()
    assert [update.round for update in updates] == [0, 1, 2]
    assert {(u.device, u.run, u.exchange, u.samples) for u in updates} == {
        ("pi-1", "run-1", exchange, agent.rounds.learner.task.samples)
    }
    assert len({update.nonce for update in updates}) == 3
    assert all(verdict.accepted for verdict in world.verdicts())
    final = world.final()
    expected = plain_replay(start_of(world.bundle), updates, mode, exchange)
    for name, value in final.tensors.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)
        assert not np.array_equal(value, start_of(world.bundle)[name])
    assert frozen(agent.rounds.learner.shared()) == frozen(dict(final.tensors))
    assert scores == agent.rounds.learner.evaluate()
    assert scores.keys() >= {"loss", "accuracy", "recall_0"}


def test_each_round_starts_from_the_fleets_theta(world: World) -> None:
    """Δ of round 1 is what the model learns from θ_1, local layers and optimiser going on."""
    world.serve(rounds=2)
    agent = world.device()
    agent.run()
    first, second = world.updates()
    alone = world.device("alone").rounds.learner
    start = start_of(world.bundle)
    for update in (first, second):
        alone.adopt(start)
        base = alone.shared()
        list(alone.train(STEPS, "delta"))
        learnt = alone.learnt(base, "delta")
        assert frozen(learnt) == frozen(dict(update.tensors))
        start = {name: start[name] + learnt[name] for name in start}


def test_the_device_says_how_it_trains(world: World) -> None:
    world.serve(rounds=2)
    device = world.device()
    scores = device.run()
    values = [read_metrics(payload) for payload in world.said(TOPICS.metrics("pi-1"))]
    assert [value["device_round"] for value in values] == [0, 1, 2]
    assert all(value["device_train_loss"] > 0 for value in values[:2])
    assert values[-1]["device_loss"] == pytest.approx(scores["loss"])
    device.agent.leave()
    assert not from_bytes(DeviceState, world.said(TOPICS.state("pi-1"))[-1]).online


def test_a_device_that_comes_back_to_a_finished_run_gets_its_result(world: World) -> None:
    world.serve(rounds=1)
    world.device().run()
    world.end()
    again = world.device()
    again.run()
    assert len(world.updates()) == 1
    assert frozen(again.rounds.learner.shared()) == frozen(dict(world.final().tensors))


def test_what_a_finished_run_has_left_on_the_broker_ends_nobody_elses_work(world: World) -> None:
    """A newcomer says why it waits, and takes part in the next run."""
    world.serve(rounds=1)
    world.device().run()
    world.end()
    state = AggregatorState(status="finished", run="run-1", mode="sync", exchange="delta")
    world.spy.publish(TOPICS.aggregator_state, to_bytes(state), retain=True)
    newcomer = world.device("pi-2")
    world.at_turn = once(
        lambda world: bool(world.events("waiting")),
        lambda world: world.serve(run="run-2", rounds=2),
    )
    newcomer.run()
    assert [event["reason"] for event in world.events("waiting")] == [
        "the fleet has finished without this device; waiting for a new run."
    ]
    assert [update.run for update in world.updates("pi-2")] == ["run-2"] * 2
