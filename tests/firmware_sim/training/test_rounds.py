"""A round that is stopped or killed and goes on is, bit for bit, one that never was."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.log import Log
from broker.protocol.slice import Tensors
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.build import make_rounds
from firmware_sim.device.make_task import TaskOptions, make_task
from firmware_sim.errors import Diverged, Stopped
from firmware_sim.training.checkpoint import Checkpoint
from firmware_sim.training.rounds import Plan, Rounds
from firmware_sim.training.waiting import Waits, lacking

STEPS = 6
EXCHANGES = ("delta", "gradient")


class Killed(BaseException):
    """Stands for a kill: nobody may catch it."""


@dataclass
class Device:
    """Rounds on the real bundle; `at_step` is called after each step."""

    rounds: Rounds
    log: io.StringIO
    steps: int = 0
    at_step: Callable[["Device"], None] = lambda device: None
    seconds_per_step: float = 1.0
    now: float = 0.0

    def clock(self) -> float:
        self.now += self.seconds_per_step
        self.steps += 1  # the first reading is the start of the round
        self.at_step(self)
        return self.now

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]

    def begin(self) -> Tensors:
        return self.rounds.learner.shared()

    def train(self, exchange: str, base: Tensors, done: int = 0) -> float:
        return self.rounds.train(run="run-1", round=4, exchange=exchange, base=base, done=done)


@pytest.fixture
def device(digits_bundle: Bundle, tmp_path: Path) -> Callable[..., Device]:
    """A device in a process of its own, so to speak: nothing is shared but the folder."""

    def start(folder: str = "state", **plan: Any) -> Device:
        task = make_task("digits", digits_bundle, TaskOptions(share=(0, 0.1), seed=3))
        log = io.StringIO()
        made = Device(None, log)  # type: ignore[arg-type]
        made.rounds = make_rounds(
            digits_bundle,
            task,
            device="pi-1",
            state=tmp_path / folder,
            plan=Plan(**{"steps": STEPS} | plan),
            log=Log(log),
            clock=made.clock,
        )
        return made

    return start


def stop_at(step: int) -> Callable[[Device], None]:
    return lambda device: device.rounds.stop() if device.steps == 1 + step else None


def kill_at(step: int) -> Callable[[Device], None]:
    def act(device: Device) -> None:
        if device.steps == 1 + step:
            raise Killed

    return act


def frozen(arrays: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def resumed(device: Device) -> Checkpoint:
    left = device.rounds.resume()
    assert left is not None
    return left


@pytest.mark.parametrize("step", [1, 3, STEPS - 1])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_stopped_round_goes_on_as_if_nothing_had_happened(
    device: Callable[..., Device], exchange: str, step: int
) -> None:
    straight = device("straight")
    base = straight.begin()
    straight.train(exchange, base)
    learnt = straight.rounds.learner.learnt(base, exchange)

    first = device()
    first.at_step = stop_at(step)
    with pytest.raises(Stopped):
        first.train(exchange, first.begin())
    second = device()
    left = resumed(second)
    assert (left.run, left.round, left.steps_done, left.outbox) == ("run-1", 4, step, b"")
    assert frozen(left.base) == frozen(base)
    second.train(exchange, left.base, left.steps_done)
    assert frozen(second.rounds.learner.learnt(left.base, exchange)) == frozen(learnt)
    assert frozen(second.rounds.learner.state()) == frozen(straight.rounds.learner.state())
    assert any(np.any(tensor) for tensor in learnt.values())


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_killed_round_goes_on_from_its_last_checkpoint(
    device: Callable[..., Device], exchange: str
) -> None:
    straight = device("straight")
    base = straight.begin()
    straight.train(exchange, base)

    first = device(checkpoint_seconds=60.0)
    first.seconds_per_step = 25.0  # more than 60 seconds are over after the third step
    first.at_step = kill_at(5)
    with pytest.raises(Killed):
        first.train(exchange, first.begin())
    second = device()
    left = resumed(second)
    assert left.steps_done == 3
    assert second.events("resumed")[0]["steps_done"] == 3
    second.train(exchange, left.base, left.steps_done)
    assert frozen(second.rounds.learner.state()) == frozen(straight.rounds.learner.state())


def test_a_round_stopped_at_its_last_step_is_whole(device: Callable[..., Device]) -> None:
    """It is for the caller to save it, as an update or as the next round."""
    last = device()
    last.at_step = stop_at(STEPS)
    last.train("delta", last.begin())
    assert device().rounds.resume() is None
    with pytest.raises(Stopped):
        last.rounds.check_stop()


def test_no_checkpoint_is_written_without_need(device: Callable[..., Device]) -> None:
    quick = device(checkpoint_seconds=60.0)
    quick.train("delta", quick.begin())
    assert device().rounds.resume() is None
    quick.rounds.check_stop()


def test_a_plan_that_became_shorter_takes_one_step(device: Callable[..., Device]) -> None:
    first = device()
    first.at_step = stop_at(5)
    with pytest.raises(Stopped):
        first.train("delta", first.begin())
    second = device(steps=3)
    left = resumed(second)
    before = float(second.rounds.learner.model.call("get_state")["optimizer/step"])
    loss = second.train("delta", left.base, left.steps_done)
    assert float(second.rounds.learner.model.call("get_state")["optimizer/step"]) == before + 1
    [event] = second.events("trained")
    assert (event["steps"], event["loss"]) == (1, loss)
    assert loss > 0


def test_the_loss_is_the_mean_over_the_steps(device: Callable[..., Device]) -> None:
    losses = list(device("alone").rounds.learner.train(STEPS, "delta"))
    trained = device()
    assert trained.train("delta", trained.begin()) == pytest.approx(np.mean(losses), rel=1e-12)
    [event] = trained.events("trained")
    assert (event["round"], event["steps"]) == (4, STEPS)
    assert event["seconds"] == STEPS + 1


def test_a_loss_that_is_no_number_ends_training(device: Callable[..., Device]) -> None:
    diverging = device()
    model = diverging.rounds.learner.model
    state = model.call("get_state")
    model.call("set_state", **{n: np.full_like(v, np.nan) for n, v in state.items()})
    with pytest.raises(Diverged) as caught:
        diverging.train("delta", diverging.begin(), done=2)
    assert str(caught.value) == "the loss is nan in step 3 of round 4; lower the learning rate."
    assert device().rounds.resume() is None, "what has diverged is not kept"


def test_an_update_is_kept_until_it_is_sent(device: Callable[..., Device]) -> None:
    first = device()
    first.rounds.save(run="run-1", round=2, done=STEPS, outbox=b"update")
    second = device()
    left = resumed(second)
    assert (left.round, left.steps_done, left.base, left.outbox) == (2, STEPS, {}, b"update")
    assert second.events("resumed")[0]["unsent"] is True


def test_scores_are_taken_every_so_often_and_at_the_end(device: Callable[..., Device]) -> None:
    rounds = device(evaluate_every=3).rounds
    scores = {number: rounds.evaluate(number) for number in range(5)}
    assert [number for number, found in scores.items() if found] == [0, 3]
    assert scores[3].keys() >= {"loss", "accuracy"}
    assert rounds.evaluate(4, last=True) == scores[3], "nothing was trained in between"


def gated(device: Callable[..., Device], why: Callable[[], str]) -> Device:
    made = device()
    made.rounds.waits = Waits(Log(made.log), gates=[lacking(why)], clock=made.clock)
    made.rounds.idle = lambda seconds: made.rounds.check_stop()
    return made


def test_a_round_waits_between_steps_while_there_is_a_reason(device: Callable[..., Device]) -> None:
    reasons = iter(["", "12 of 32", "12 of 32", "12 of 32", "", *[""] * STEPS])
    waiting = gated(device, lambda: next(reasons))
    waiting.train("delta", waiting.begin())
    assert [event["reason"] for event in waiting.events("waiting")] == ["12 of 32"]
    assert len(waiting.events("continued")) == 1
    assert [event["steps"] for event in waiting.events("trained")] == [STEPS]


@pytest.mark.parametrize("asked", [1, 2, 4])  # how often it has asked when it is stopped
def test_a_stop_ends_a_wait_and_keeps_the_steps_before_it(
    device: Callable[..., Device], asked: int
) -> None:
    looks = 0

    def why() -> str:
        nonlocal looks
        looks += 1
        if looks == 2 + asked:
            waiting.rounds.stop()
        return "12 of 32" if looks > 2 else ""

    waiting = gated(device, why)
    with pytest.raises(Stopped):
        waiting.train("delta", waiting.begin())
    assert resumed(device()).steps_done == 2
