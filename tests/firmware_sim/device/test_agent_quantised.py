"""An agent that sends quantised updates keeps what rounding kept back."""

import numpy as np
import pytest

from broker.protocol.slice import Tensors
from firmware_sim.device.compression import Compression
from firmware_sim.training.checkpoint import Residual
from tests.firmware_sim.device.world import STEPS, World, frozen, once, start_of, straight

lossy = pytest.mark.parametrize("encoding", ["float16", "int8", "int4"])


@lossy
@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_what_rounding_keeps_back_is_sent_later(world: World, encoding: str, exchange: str) -> None:
    """What was learnt in all is what was sent in all and what is still kept."""
    world.serve(exchange=exchange)
    device = world.device(encoding=encoding)
    learnt: list[Tensors] = []
    ask = device.rounds.learner.learnt
    device.rounds.learner.learnt = (  # type: ignore[method-assign]
        lambda base, exchange: learnt.append(ask(base, exchange)) or learnt[-1]  # type: ignore[func-returns-value]
    )
    device.run()
    assert {update.encoding for update in world.updates()} == {encoding}
    sent = world.decoded()
    assert len(sent) == len(learnt) == 3
    for name, kept in device.rounds.residual.tensors.items():
        total = sum(x[name].astype(np.float64) for x in learnt)
        received = sum(x[name].astype(np.float64) for x in sent)
        np.testing.assert_allclose(received + kept, total, rtol=0, atol=1e-6 * np.abs(total).max())
        assert np.any(kept)
        if exchange == "delta":
            moved = world.final().tensors[name] - start_of(world.bundle)[name]
            np.testing.assert_allclose(moved, received, atol=1e-6)


@pytest.mark.parametrize("encoding", ["int8", "int4"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("reading", [4, 8], ids=["at the last step", "next round"])
def test_a_stopped_device_keeps_what_rounding_kept(
    world: World, mode: str, encoding: str, reading: int
) -> None:
    """Stopped with an update unsent, or in the middle of the round after it."""
    expected = straight(world, mode, "delta", encoding)
    world.serve(mode)
    readings = iter(range(1, 10**6))

    def clock() -> float:
        if next(readings) == reading:
            first.rounds.stop()
        return world.now

    first = world.device(clock=clock, encoding=encoding)
    first.run_until_stopped()
    second = world.device(encoding=encoding)
    second.run()
    assert len({update.nonce for update in world.updates()}) == 3
    state = frozen(second.rounds.learner.state())
    assert (frozen(dict(world.final().tensors)), state) == expected


def test_a_late_update_is_lost_and_what_rounding_kept_is_not(world: World) -> None:
    """As in float32: only what was never sent goes into the next update."""
    world.serve(deadline_seconds=30.0)
    kept: list[dict[str, bytes]] = []

    def slow() -> float:
        if not world.updates("pi-2"):
            world.send_nothing_as("pi-2", 0)
            world.now += 31.0
            assert world.aggregator is not None
            while world.aggregator.state.round == 0:
                world.aggregator.poll()
        if world.updates() and not kept:
            kept.append(frozen(device.rounds.residual.tensors))
        return world.now

    device = world.device(clock=slow, encoding="int8")
    alone = world.device("alone").rounds.learner
    device.run()
    assert [v.reason for v in world.verdicts()] == ["late", "", ""]
    # The update of round 1 is Q(e + Δ) with the e that round 0 left.
    residual = Residual("run-1", {})
    again = Compression("int8", residual)
    start = start_of(world.bundle)  # to which the other device added nothing
    for number, update in enumerate(world.updates()[:2]):
        alone.adopt(start)
        base = alone.shared()
        list(alone.train(STEPS, "delta"))
        learnt = alone.learnt(base, "delta")
        sent = again.compress(learnt, device="pi-1", round=number, everything=True)
        assert frozen(sent) == frozen(dict(update.tensors))
        if number == 0:
            assert frozen(residual.tensors) == kept[0]


def test_a_new_run_begins_without_what_rounding_kept(world: World) -> None:
    world.serve()
    kept: list[Residual] = []

    def note(base: Tensors, exchange: str) -> Tensors:
        kept.append(Residual(device.rounds.residual.run, device.rounds.residual.tensors))
        return ask(base, exchange)

    world.at_turn = once(
        lambda world: len(world.updates()) == 2, lambda world: world.serve(run="run-2", rounds=2)
    )
    device = world.device(encoding="int8")
    ask = device.rounds.learner.learnt
    device.rounds.learner.learnt = note  # type: ignore[method-assign]
    device.run()
    assert [(k.run, bool(k.tensors)) for k in kept] == [
        ("run-1", False), ("run-1", True), ("run-2", False), ("run-2", True),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_theta_in_float16_is_the_base_of_what_is_learnt(world: World, mode: str) -> None:
    """Δ counts from the widened θ; the aggregator adds it to its own, which stays float32."""
    world.serve(mode, rounds=2, downlink="float16")
    device = world.device()
    device.run()
    alone = world.device("alone").rounds.learner
    theta = start_of(world.bundle)
    for update in world.updates():
        alone.adopt({name: x.astype(np.float16).astype(np.float32) for name, x in theta.items()})
        base = alone.shared()
        list(alone.train(STEPS, "delta"))
        learnt = alone.learnt(base, "delta")
        assert frozen(learnt) == frozen(dict(update.tensors))
        theta = {name: theta[name] + learnt[name] for name in theta}
    final = world.final()
    assert all(tensor.dtype == np.float16 for tensor in final.tensors.values())
    for name, value in final.tensors.items():
        np.testing.assert_array_equal(value, theta[name].astype(np.float16))
        np.testing.assert_array_equal(device.rounds.learner.shared()[name], value)
    assert any(np.any(theta[name] != final.tensors[name]) for name in theta)
