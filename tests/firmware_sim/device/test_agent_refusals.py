"""An agent that the fleet refuses ends with one sentence."""

from typing import Any

import numpy as np
import pytest

from broker.aggregator.slice_file import read_slice
from broker.merging.coordinator import Entry
from broker.merging.presence import MAX_DEVICES
from broker.protocol.messages import (
    Shared,
    Verdict,
    to_bytes,
)
from broker.protocol.slice import SharedTensor, Slice
from broker.transport.in_memory import MemoryTransport
from firmware_sim.errors import FleetRefused
from tests.firmware_sim.device.world import TOPICS, World, once, start_of


def test_a_refused_birth_is_one_sentence(world: World) -> None:
    known, _ = read_slice(world.bundle.slice)
    first, *others = known.tensors
    wider = SharedTensor.of(first.name, (*first.shape, 2), first.dtype, first.role)
    world.serve(known=Slice.of((wider, *others)))
    with pytest.raises(FleetRefused) as caught:
        world.device().run()
    assert str(caught.value) == (
        f"the aggregator refused this device: tensor {first.name!r} has shape {first.shape} on "
        f"the device and {wider.shape} in the fleet."
    )
    assert world.updates() == []


def test_a_refusal_by_an_older_run_is_no_refusal(world: World) -> None:
    """It waited on the broker for a device that has been given the right bundle since."""
    old = Verdict(device="pi-1", about="join", run="run-0", accepted=False, text="no.")
    agent = world.device()
    world.spy.publish(TOPICS.verdict("pi-1"), to_bytes(old))
    world.serve(rounds=1)
    agent.run()
    assert len(world.updates()) == 1


def test_an_update_that_would_be_refused_for_ever_is_one_sentence(world: World) -> None:
    full = {f"d{k}": Entry(0, "old", 1, ()) for k in range(MAX_DEVICES)}
    world.serve(ledger=full, quorum=2)
    with pytest.raises(FleetRefused) as caught:
        world.device().run()
    assert str(caught.value) == (
        "the aggregator refused an update: the fleet has its 10000 devices."
    )


@pytest.mark.parametrize("fault", ["missing", "shape", "dtype", "nan", "inf"])
def test_a_theta_that_does_not_fit_is_ignored_and_waited_out(world: World, fault: str) -> None:
    """It is not the aggregator's, which checks births; the good one before it stays the newest."""
    world.serve(rounds=1)
    good = start_of(world.bundle)
    name = next(iter(good))
    bad: dict[str, Any] = dict(good)
    match fault:
        case "missing":
            del bad[name]
        case "shape":
            bad[name] = np.zeros((*good[name].shape, 1), np.float32)
        case "dtype":
            bad[name] = good[name].astype(np.float64)
        case "nan" | "inf":
            bad[name] = np.full_like(good[name], float(fault))
    forged = Shared(run="run-1", round=10**6, fingerprint="f", tensors=bad)
    agent = world.device()
    world.spy.publish(TOPICS.shared, to_bytes(forged))
    agent.run()
    assert len(world.updates()) == 1
    (ignored,) = world.events("ignored")
    assert ignored["text"] == "the fleet's θ_shared does not fit this bundle, or is not finite."


def test_garbage_from_the_broker_is_ignored(world: World) -> None:
    world.serve(rounds=1)
    for topic in (TOPICS.shared, TOPICS.verdict("pi-1"), TOPICS.aggregator_state):
        world.spy.publish(topic, b"garbage", retain=True)
    world.device().run()
    assert len(world.updates()) == 1
    assert world.events("ignored")


def test_another_client_with_the_same_name_is_one_sentence(world: World) -> None:
    world.serve()
    client = TOPICS.client_id("pi-1")
    taken: list[MemoryTransport] = []
    world.at_turn = once(
        lambda world: len(world.updates()) == 1,
        lambda world: taken.append(MemoryTransport(world.memory, client_id=client)),
    )
    with pytest.raises(FleetRefused) as caught:
        world.device().run()
    assert str(caught.value) == f"another client with the id {client!r} connected."
    taken[0].close()
