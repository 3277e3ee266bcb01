"""Training alone: the same steps whether or not it was interrupted, and honest about its folder."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.log import Log
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.build import make_rounds
from firmware_sim.device.make_task import TaskOptions, make_task
from firmware_sim.errors import CheckpointError, Stopped
from firmware_sim.training.rounds import ALONE, Plan, Rounds, train_alone

STEPS, COUNT = 4, 3


@dataclass
class Alone:
    """A device that asks itself for a stop when its clock is read for the n-th time."""

    readings_left: int
    stream: io.StringIO = field(default_factory=io.StringIO)
    rounds: Rounds = field(init=False)

    def read_clock(self) -> float:
        self.readings_left -= 1
        if self.readings_left == 0:
            self.rounds.stop()
        return 0.0

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.stream.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]

    def train(self, count: int = COUNT) -> dict[str, float]:
        return train_alone(self.rounds, count)

    def frozen(self) -> dict[str, bytes]:
        state = self.rounds.learner.state()
        return {name: array.tobytes() for name, array in state.items()}


Start = Callable[..., Alone]
Straight = tuple[dict[str, float], dict[str, bytes]]


@pytest.fixture
def start(digits_bundle: Bundle, tmp_path: Path) -> Start:
    def begin(folder: str = "state", *, stop_at: int = 0, **plan: Any) -> Alone:
        alone = Alone(stop_at)
        alone.rounds = make_rounds(
            digits_bundle,
            make_task("digits", digits_bundle, TaskOptions(share=(0, 0.1), seed=3)),
            device="pi-1",
            state=tmp_path / folder,
            plan=Plan(**{"steps": STEPS} | plan),
            log=Log(alone.stream),
            clock=alone.read_clock,
        )
        return alone

    return begin


@pytest.fixture
def straight(start: Start) -> Straight:
    """Scores and state of a run that was not interrupted."""
    alone = start("straight")
    return alone.train(), alone.frozen()


# A round reads the clock once at its start, after each of 4 steps, and once at its end.
@pytest.mark.parametrize("reading", [1, 2, 4, 5, 6, 7, 10, 17, 18])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    start: Start, straight: Straight, reading: int
) -> None:
    first = start(stop_at=reading)
    with pytest.raises(Stopped):
        first.train()
    second = start()
    assert (second.train(), second.frozen()) == straight


def test_every_round_is_trained_and_evaluated_once(start: Start) -> None:
    alone = start()
    scores = alone.train()
    assert [(e["round"], e["steps"]) for e in alone.events("trained")] == [
        (number, STEPS) for number in range(COUNT)
    ]
    assert [event["round"] for event in alone.events("evaluated")] == [0, 1, 2, 3]
    assert scores == alone.rounds.learner.evaluate()
    assert float(alone.rounds.learner.model.call("get_state")["optimizer/step"]) == COUNT * STEPS


def test_the_last_round_is_always_evaluated(start: Start) -> None:
    alone = start(evaluate_every=2)
    assert alone.train().keys() >= {"loss", "accuracy", "recall_0"}
    assert [event["round"] for event in alone.events("evaluated")] == [0, 2, 3]


def test_a_run_that_is_over_is_only_evaluated(start: Start, straight: Straight) -> None:
    again = start("straight")
    assert again.train() == straight[0]
    assert again.events("trained") == []
    assert again.frozen() == straight[1]
    longer = start("straight")
    longer.train(COUNT + 1)
    assert [event["round"] for event in longer.events("trained")] == [COUNT]


def test_a_folder_of_a_fleet_is_refused(start: Start) -> None:
    start().rounds.save(run="run-1", round=2, done=STEPS, outbox=b"update")
    with pytest.raises(CheckpointError) as caught:
        start().train()
    assert str(caught.value) == "the checkpoint was made in a fleet; give another --state."
    assert ALONE != "run-1"


def test_answers_get_weights_that_were_evaluated_and_those_of_the_checkpoint(start: Start) -> None:
    """When weights are handed over, the measures that belong to them are known."""

    def trained(alone: Alone) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []

        def renewed() -> None:
            steps = int(alone.rounds.learner.state()["model/optimizer/step"])
            seen.append((steps, len(alone.events("evaluated"))))

        alone.rounds.renewed = renewed
        alone.train()
        return seen

    assert trained(start()) == [(0, 1), (STEPS, 2), (2 * STEPS, 3), (3 * STEPS, 4)]
    again = start()
    again.rounds.restore()
    again.rounds.restore()  # nothing more
    assert int(again.rounds.learner.state()["model/optimizer/step"]) == COUNT * STEPS
    assert len(again.events("resumed")) == 1
    assert trained(again)[0] == (COUNT * STEPS, 0)
