"""An agent that pauses says so; nobody waits for it, and it goes on from the newest θ_shared."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.protocol.messages import DeviceState, from_bytes
from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import Stopped
from tests.firmware_sim.device.world import (
    STEPS,
    TOPICS,
    Device,
    World,
    frozen,
    once,
    straight,
)
from tests.harness.metrics import read_metrics

NEVER = 1e6  # seconds; the deadline of a round


def pausing(bundle: Bundle, file: Path) -> Bundle:
    manifest = bundle.manifest
    profile = replace(manifest.profile, pause_file=str(file))
    return replace(bundle, manifest=replace(manifest, profile=profile))


@pytest.fixture
def file(world: World) -> Path:
    """While it exists, devices of the world pause."""
    file = world.folder / "pause"
    world.bundle = pausing(world.bundle, file)
    return file


def pause_after(world: World, file: Path, before: int) -> Device:
    """A device whose steps take a second; the file appears after so many of them."""
    device = world.device()
    train = device.rounds.learner.train
    taken = 0

    def slowly(steps: int, exchange: str) -> Iterator[float]:
        nonlocal taken
        for loss in train(steps, exchange):
            world.now += 1.0
            taken += 1
            if taken == before:
                file.touch()
            yield loss

    device.rounds.learner.train = slowly  # type: ignore[method-assign]
    if not before:
        file.touch()
    return device


def waiting(world: World) -> list[str]:
    """What the device has said about it, repetitions left out."""
    states = [from_bytes(DeviceState, payload) for payload in world.said(TOPICS.state("pi-1"))]
    said = [state.waiting for state in states if state.online]
    return [text for n, text in enumerate(said) if n == 0 or said[n - 1] != text]


@pytest.mark.parametrize("steps", [0, 2])
def test_a_pause_of_everybody_changes_nothing_of_what_is_learnt(
    world: World, file: Path, steps: int
) -> None:
    world.serve("sync", deadline_seconds=NEVER)
    expected = straight(world, "sync", "delta")
    agent = pause_after(world, file, steps)
    world.at_turn = once(lambda world: len(waiting(world)) > 1, lambda world: file.unlink())
    agent.run()
    assert waiting(world) == ["", f"file: {file} exists", ""]
    assert [update.round for update in world.updates()] == [0, 1, 2]
    assert frozen(agent.rounds.learner.state()) == expected[1]
    assert [event["cause"] for event in world.events("waiting")] == ["file"]
    assert [event["cause"] for event in world.events("continued")] == ["file"]
    seconds = read_metrics(world.said(TOPICS.metrics("pi-1"))[-1])
    assert seconds['device_waiting_seconds{cause="file"}'] >= 1.0


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_round_does_not_wait_for_a_device_that_pauses(
    world: World, file: Path, steps: int, exchange: str
) -> None:
    """It then leaves that round alone, and starts from the θ_shared that is the newest."""
    world.serve("sync", exchange=exchange, deadline_seconds=NEVER)
    agent = pause_after(world, file, steps)

    def turn(world: World) -> None:
        paused(world)
        merged(world)

    def go_on(world: World) -> None:
        world.leave_as("pi-2")
        file.unlink()

    paused = once(
        lambda world: len(waiting(world)) > 1,
        lambda world: world.send_nothing_as("pi-2", 0, exchange),
    )
    merged = once(lambda world: bool(world.aggregator and world.aggregator.state.round), go_on)
    world.at_turn = turn
    agent.run()
    assert [update.round for update in world.updates()] == [1, 2]
    assert not [verdict for verdict in world.verdicts() if not verdict.accepted]
    assert world.now < NEVER
    assert [event["steps"] for event in world.events("trained")] == [STEPS] * 2


def test_a_fleet_that_has_finished_ends_a_pause(world: World, file: Path) -> None:
    world.serve("sync", rounds=1, deadline_seconds=NEVER)
    agent = pause_after(world, file, 2)
    world.at_turn = once(
        lambda world: len(waiting(world)) > 1,
        lambda world: world.send_nothing_as("pi-2", 0),
    )
    agent.run()
    assert file.exists()
    assert not world.updates()
    assert frozen(agent.rounds.learner.shared()) == frozen(dict(world.final().tensors))


def test_a_stopped_pause_keeps_its_steps_and_goes_on_pausing(world: World, file: Path) -> None:
    expected = straight(world, "sync", "delta")
    world.serve("sync")
    first = pause_after(world, file, 2)
    world.at_turn = once(lambda world: len(waiting(world)) > 1, lambda world: first.rounds.stop())
    with pytest.raises(Stopped):
        first.agent.run()
    first.agent.leave()
    first.agent.close()
    assert world.checkpoint().steps_done == 2
    world.at_turn = once(
        lambda world: len(world.events("waiting")) > 1, lambda world: file.unlink()
    )
    again = world.device()
    again.run()
    assert frozen(again.rounds.learner.state()) == expected[1]
