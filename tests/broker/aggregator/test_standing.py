"""What stands on the broker may be forged, old, or of another aggregator; the fleet goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.aggregator.service import STATE_PAUSE, STATE_SECONDS
from broker.errors import Superseded
from broker.merging.presence import Presence
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    Reason,
    Shared,
    from_bytes,
    to_bytes,
)
from broker.transport.in_memory import MemoryBroker
from tests.broker.aggregator.world import DEADLINE, STEM, TOPICS, Client, Fleet, Start


def standing(fleet: Fleet) -> AggregatorState:
    payload = fleet.retained(TOPICS.aggregator_state)
    assert payload is not None
    return from_bytes(AggregatorState, payload)


def forge(fleet: Fleet, payload: bytes) -> None:
    attacker = Client(fleet.memory, "attacker", "nothing")
    attacker.transport.publish(TOPICS.aggregator_state, payload, retain=True)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        to_bytes(AggregatorState(status="offline", run="run-1")),
        to_bytes(AggregatorState(status="online", run="another", epoch=10**6, instance="z")),
        to_bytes(AggregatorState(status="finished", run="run-1", epoch=2**52, instance="z")),
    ],
    ids=["cleared", "garbage", "an old will", "another run", "finished"],
)
def test_a_forged_state_is_replaced_at_once(start: Start, payload: bytes) -> None:
    fleet = start()
    fleet.settle()
    before = standing(fleet)
    fleet.clock.now += 2  # since the last publication
    forge(fleet, payload)
    fleet.settle()
    assert standing(fleet) == before
    assert fleet.aggregator.counters.states_overwritten == 1


def test_a_flood_of_forged_states_is_answered_once_a_second(start: Start) -> None:
    fleet = start()
    fleet.settle()
    spy = Client(fleet.memory, "listener", TOPICS.aggregator_state)
    spy.hear()
    for _ in range(5):
        for _ in range(50):
            forge(fleet, b"garbage")
            fleet.turn()
        fleet.clock.now += STATE_PAUSE
        fleet.turn()
    own = [payload for _, payload in spy.hear() if payload != b"garbage"]
    assert len(own) == 5


def test_the_state_is_published_again_and_again(start: Start) -> None:
    fleet = start()
    fleet.settle()
    spy = Client(fleet.memory, "listener", TOPICS.aggregator_state)
    spy.hear()
    fleet.clock.now += STATE_SECONDS
    fleet.settle()
    assert len(spy.hear()) == 1


def test_the_state_says_epoch_instance_and_round(start: Start) -> None:
    fleet = start()
    device = fleet.device("pi-1")
    device.birth()
    fleet.settle()
    device.send(device.update())
    fleet.settle()
    fleet.clock.now += STATE_SECONDS
    fleet.settle()
    state = standing(fleet)
    assert (state.epoch, state.round) == (1, 1)
    assert len(state.instance) == 16


# --- two aggregators -----------------------------------------------------------------------------


def test_the_newer_of_two_aggregators_stays(start: Start) -> None:
    """A broker throws the older one out; when it comes back, it sees who has the fleet."""
    older = start()
    older.settle()
    newer_state = replace(standing(older), epoch=2, instance="newer")
    older.transport.drop()
    forge(older, to_bytes(newer_state))
    older.transport.reconnect()
    with pytest.raises(Superseded, match=r"^a newer aggregator has the fleet") as ended:
        older.settle()
    assert ended.value.exit_code == 4


def test_a_restarted_aggregator_is_newer_than_what_it_left(start: Start) -> None:
    fleet = start()
    fleet.settle()
    first = standing(fleet)
    fleet.end()
    again = start(memory=fleet.memory)
    again.settle()
    second = standing(again)
    assert second.epoch == first.epoch + 1
    assert second.instance != first.instance


def test_a_new_folder_goes_above_the_epoch_on_the_broker(start: Start) -> None:
    memory = MemoryBroker()
    left = AggregatorState(status="offline", run="before", epoch=41, instance="before")
    attacker = Client(memory, "before", "nothing")
    attacker.transport.publish(TOPICS.aggregator_state, to_bytes(left), retain=True)
    fleet = start(memory=memory)
    fleet.settle()
    assert (standing(fleet).epoch, standing(fleet).status) == (42, "online")


# --- births --------------------------------------------------------------------------------------


def test_more_forged_births_than_devices_can_be_do_not_shut_devices_out(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 500
    monkeypatch.setattr(Presence.__init__, "__defaults__", (most,))  # instead of 10,000
    fleet = start(quorum=2)
    fleet.settle()
    attacker = Client(fleet.memory, "attacker", "nothing")
    for number in range(most + 100):
        ghost = DeviceState.birth(f"ghost-{number}", STEM, {})
        attacker.transport.publish(TOPICS.state(ghost.device), to_bytes(ghost), retain=True)
        if number % 50 == 0:
            fleet.settle()
    fleet.settle()
    devices = [fleet.device(name) for name in ("pi-1", "pi-2")]
    for device in devices:
        device.birth()
    fleet.settle()
    assert [device.verdicts()[-1].accepted for device in devices] == [True, True]
    for round in range(3):
        for device in devices:
            device.send(device.update(round))
        fleet.settle()
        if round == 0:  # it waits for the ghosts, once
            assert fleet.aggregator.state.round == 0
            fleet.clock.now += DEADLINE
            fleet.settle()
        assert fleet.aggregator.state.round == round + 1
    assert fleet.aggregator.counters.devices_silent == most - 2


def test_a_device_that_was_silent_is_waited_for_once_it_speaks(start: Start) -> None:
    fleet = start(quorum=1)
    quick, slow = fleet.device("quick"), fleet.device("slow")
    for device in (quick, slow):
        device.birth()
    fleet.settle()
    quick.send(quick.update(0))
    fleet.settle()
    fleet.clock.now += DEADLINE
    fleet.settle()
    assert fleet.aggregator.state.round == 1
    slow.send(slow.update(0))  # too late for its round, but a sign of life
    fleet.settle()
    assert slow.verdicts()[-1].reason == Reason.LATE
    quick.send(quick.update(1))
    fleet.settle()
    assert fleet.aggregator.state.round == 1
    slow.send(slow.update(1))
    fleet.settle()
    assert fleet.aggregator.state.round == 2


def test_of_two_devices_with_one_name_the_older_is_refused(start: Start) -> None:
    fleet = start()
    device = fleet.device("pi-1")
    for instance in ("older", "newer", "older"):
        device.birth(instance=instance)
        fleet.settle()
    accepted = [(v.accepted, v.reason) for v in device.verdicts()]
    assert accepted == [(True, ""), (True, ""), (False, "superseded")]


# --- θ_shared on request -------------------------------------------------------------------------


def test_a_device_that_asks_gets_theta_on_its_own_topic(start: Start) -> None:
    fleet = start()
    device, other = fleet.device("pi-1"), fleet.device("pi-2")
    device.birth(asks=True)
    other.birth()
    fleet.settle()
    own = [from_bytes(Shared, p) for t, p in device.hear() if t == TOPICS.reply("pi-1")]
    assert [(shared.run, shared.round) for shared in own] == [("run-1", 0)]
    assert not [t for t, _ in other.hear() if t == TOPICS.reply("pi-2")]
