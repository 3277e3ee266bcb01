"""Who gets a pack, in which order; and what one device is sent."""

import pytest

from broker.protocol.messages import Rollout
from firmware_sim.updating.updates import WINDOW
from toolkit.errors import RolloutError
from toolkit.rollout.delivery import FIRST_REPEAT, Delivery
from toolkit.rollout.waves import chosen, waves

FLEET = [f"pi-{n}" for n in range(25)]


def test_waves_double() -> None:
    sizes = [len(wave) for wave in waves(FLEET)]
    assert sizes == [1, 2, 4, 8, 10]
    assert [name for wave in waves(FLEET) for name in wave] == FLEET
    assert list(waves([])) == []


def test_a_part_of_the_fleet_is_rounded_up_and_differs_from_pack_to_pack() -> None:
    tenth = chosen("10%", FLEET, 7)
    assert len(tenth) == 3
    assert tenth == chosen("10%", list(reversed(FLEET)), 7)
    assert tenth != chosen("10%", FLEET, 8)
    everyone = chosen("all", FLEET, 7)
    assert sorted(everyone) == sorted(FLEET)
    assert everyone[:3] == tenth, "who has it already comes first"
    assert len(chosen("0.1%", FLEET, 7)) == 1


def test_names_are_taken_as_they_are_given() -> None:
    assert chosen("pi-3,pi-1,pi-3", FLEET, 7) == ["pi-3", "pi-1"]
    with pytest.raises(RolloutError, match=r"^nobody does not run from a pack at the moment"):
        chosen("pi-3,nobody", FLEET, 7)
    for wrong in ("0%", "101%"):
        with pytest.raises(RolloutError, match="is not a part of the fleet"):
            chosen(wrong, FLEET, 7)


def said(stage: str, part: int = 0, text: str = "") -> Rollout:
    return Rollout(device="pi-1", version=7, stage=stage, part=part, text=text)


def test_parts_are_sent_as_they_are_wanted_and_again_ever_more_slowly() -> None:
    delivery = Delivery("pi-1", 20, now=100.0, silent_after=900.0)
    assert not delivery.due(100.0)
    assert delivery.heard(said("wants", 0), 101.0)
    assert delivery.due(101.0) == range(WINDOW)
    assert not delivery.due(101.0 + FIRST_REPEAT - 1)
    assert delivery.due(101.0 + FIRST_REPEAT) == range(WINDOW)
    assert not delivery.due(101.0 + 2 * FIRST_REPEAT)
    assert delivery.due(101.0 + 3 * FIRST_REPEAT) == range(WINDOW)
    assert not delivery.heard(said("wants", 16), 200.0), "the same stage"
    assert delivery.due(200.0) == range(16, 20)
    assert delivery.heard(said("trying"), 201.0)
    assert not delivery.due(999.0)
    assert not delivery.is_over


@pytest.mark.parametrize(("stage", "healthy"), [("done", True), ("refused", False)])
def test_the_end_is_the_end(stage: str, healthy: bool) -> None:
    delivery = Delivery("pi-1", 20, now=0.0, silent_after=900.0)
    assert delivery.heard(said(stage, text="so it is"), 1.0)
    assert (delivery.is_over, delivery.is_healthy, delivery.text) == (True, healthy, "so it is")
    assert not delivery.heard(said("wants", 3), 2.0)
    assert not delivery.give_up_if_silent(10_000.0)


def test_nonsense_is_not_believed_and_silence_ends_it() -> None:
    delivery = Delivery("pi-1", 20, now=0.0, silent_after=900.0)
    assert not delivery.heard(said("dances"), 1.0)
    delivery.heard(said("wants", 10**9), 2.0)
    assert list(delivery.due(2.0)) == []
    assert not delivery.give_up_if_silent(900.0)
    assert delivery.give_up_if_silent(903.0)
    assert (delivery.is_healthy, delivery.text) == (False, "it has said nothing for 900 s")
