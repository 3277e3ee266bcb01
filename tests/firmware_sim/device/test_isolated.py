"""Training alone: the same steps whether or not it was interrupted, and honest about its folder."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.log import Log
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.__main__ import shared_slice
from firmware_sim.device.isolated import RUN, train_alone
from firmware_sim.device.make_task import make_task
from firmware_sim.errors import CheckpointError, Stopped
from firmware_sim.tasks.task import TaskOptions
from firmware_sim.training.checkpoint import Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from firmware_sim.training.runtime import Model

STEPS, COUNT = 4, 3


class Alone(Rounds):
    """Asks itself for a stop when its clock is read for the n-th time, and keeps its log."""

    def __init__(self, *parts: Any, stop_at: int) -> None:
        self.stream = io.StringIO()
        self.readings_left = stop_at
        super().__init__(*parts, Log(self.stream), clock=self.read_clock)

    def read_clock(self) -> float:
        self.readings_left -= 1
        if self.readings_left == 0:
            self.stop()
        return 0.0

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.stream.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]


Start = Callable[..., Alone]


@pytest.fixture
def start(digits_bundle: Bundle, tmp_path: Path) -> Start:
    def begin(folder: str = "state", *, stop_at: int = 0, **plan: Any) -> Alone:
        task = make_task("digits", digits_bundle, TaskOptions(share=(0, 0.1), seed=3))
        learner = Learner(Model(digits_bundle.model), task, shared_slice(digits_bundle))
        checkpoints = Checkpoints(tmp_path / folder, device="pi-1", bundle="b")
        return Alone(learner, checkpoints, Plan(**{"steps": STEPS} | plan), stop_at=stop_at)

    return begin


def frozen(rounds: Rounds) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in rounds.learner.state().items()}


@pytest.fixture
def straight(start: Start) -> tuple[dict[str, float], dict[str, bytes]]:
    """Scores and state of a run that nobody interrupted."""
    rounds = start("straight")
    return train_alone(rounds, COUNT), frozen(rounds)


# A round reads the clock once at its start, after each of 4 steps, and once at its end.
@pytest.mark.parametrize("reading", [1, 2, 4, 5, 6, 7, 10, 17, 18])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    start: Start, straight: tuple[dict[str, float], dict[str, bytes]], reading: int
) -> None:
    first = start(stop_at=reading)
    with pytest.raises(Stopped):
        train_alone(first, COUNT)
    second = start()
    scores = train_alone(second, COUNT)
    assert (scores, frozen(second)) == straight


def test_every_round_is_trained_and_evaluated_once(start: Start) -> None:
    rounds = start()
    scores = train_alone(rounds, COUNT)
    assert [(e["round"], e["steps"]) for e in rounds.events("trained")] == [
        (number, STEPS) for number in range(COUNT)
    ]
    assert [event["round"] for event in rounds.events("evaluated")] == [0, 1, 2, 3]
    assert scores == rounds.learner.evaluate()
    assert float(rounds.learner.model.call("get_state")["optimizer/step"]) == COUNT * STEPS


def test_the_last_round_is_always_evaluated(start: Start) -> None:
    rounds = start(evaluate_every=2)
    assert train_alone(rounds, COUNT).keys() == {"loss", "accuracy"}
    assert [event["round"] for event in rounds.events("evaluated")] == [0, 2, 3]


def test_a_run_that_is_over_is_only_evaluated(
    start: Start, straight: tuple[dict[str, float], dict[str, bytes]]
) -> None:
    again = start("straight")
    assert train_alone(again, COUNT) == straight[0]
    assert again.events("trained") == []
    assert frozen(again) == straight[1]
    longer = start("straight")
    train_alone(longer, COUNT + 1)
    assert [event["round"] for event in longer.events("trained")] == [COUNT]


def test_a_folder_of_a_fleet_is_refused(start: Start) -> None:
    start().save(run="run-1", round=2, done=STEPS, outbox=b"update")
    with pytest.raises(CheckpointError) as caught:
        train_alone(start(), COUNT)
    assert str(caught.value) == "the checkpoint was made in a fleet; give another --state."
    assert RUN != "run-1"
