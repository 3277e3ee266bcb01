"""A device of the study keeps the version that validated best, also over a restart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from firmware_sim.tasks.labelled import Examples
from firmware_sim.tensor_spec import TensorSpec
from toolkit.experiment.supervised.splits import Part
from toolkit.experiment.supervised.task import OnScores, StudyTask

STEPS = 2  # in a round


class Scripted:
    """Stands for a model: in round r it is right on so many of 10 validation examples."""

    signatures = ("train", "evaluate")

    def __init__(self, right: Sequence[int], losses: Sequence[float]) -> None:
        self.right, self.losses = right, losses
        self.state = {"w": np.float32(0), "optimizer/step": np.float32(0)}
        self.streams: list[int] = []

    def inputs(self, signature: str) -> dict[str, TensorSpec]:
        x = TensorSpec((32, 1), np.dtype(np.uint8))
        return {"x": x, "y": TensorSpec((32,), np.dtype(np.int32))}

    def use_random_stream(self, number: int) -> None:
        self.streams.append(number)

    def call(self, signature: str, /, **inputs: Any) -> dict[str, Any]:
        match signature:
            case "train":
                step = self.state["optimizer/step"] + 1
                self.state = {"w": step // STEPS, "optimizer/step": step}
                return {"loss": np.float32(1)}
            case "evaluate":
                version = int(self.state["w"])
                counted = inputs["y"] >= 0
                if inputs["x"].max() > 100:  # the test set: each version has a score of its own
                    return {"loss": np.float32(0), "correct": np.float32(version)}
                right = self.right[version] * counted.sum() / 10
                return {"loss": self.losses[version] * counted.sum(), "correct": right}
            case "get_state":
                return dict(self.state)
            case "set_state":
                self.state = dict(inputs)
        return {}


def task(
    *,
    test_rounds: Sequence[int] = (),
    validate_on: int | None = None,
    on_scores: OnScores = lambda round, scores: None,
    stream: str = "",
) -> StudyTask:
    x = np.arange(50, dtype=np.uint8)[:, None]
    tested = np.full((20, 1), 200, np.uint8)
    examples = Examples(x, np.zeros(50, np.int32), tested, np.zeros(20, np.int32))
    part = Part(np.arange(40), np.arange(40, 50))
    return StudyTask(
        examples,
        part,
        steps=STEPS,
        seed=0,
        test_rounds=test_rounds,
        validate_on=validate_on,
        on_scores=on_scores,
        stream=stream,
    )


def play(study: StudyTask, model: Any, rounds: int) -> list[dict[str, float]]:
    scores = []
    for _ in range(rounds):
        list(study.train(model, STEPS, "delta"))
        scores.append(study.evaluate(model))
    return scores


@pytest.mark.parametrize(
    ("right", "losses", "best"),
    [
        ([1, 4, 9, 3], [9, 9, 9, 9], 2),
        ([1, 4, 9, 9], [9, 9, 2, 1], 3),  # as right, and surer
        ([1, 4, 9, 9], [9, 9, 1, 1], 2),  # no better
    ],
)
@pytest.mark.parametrize("killed_after", [0, 1, 2, 3])
def test_the_best_version_is_kept(
    right: list[int], losses: list[float], best: int, killed_after: int
) -> None:
    model: Any = Scripted(right, losses)
    study = task()
    play(study, model, killed_after)
    state, again = study.state(), task()
    again.restore(state)
    assert again.round == killed_after
    play(again, model, 3 - killed_after)
    assert (again.best_round, again.best_scores["accuracy"]) == (best, right[best] / 10)
    assert model.state["w"] == 3
    again.restore_best(model)
    assert model.state == {"w": best, "optimizer/step": 3 * STEPS}
    assert again.test(model) == best / 20


def test_every_round_draws_from_its_own_stream_also_after_a_restart() -> None:
    whole: Any = Scripted([0] * 5, [1] * 5)
    play(task(stream="0 weak"), whole, 4)
    assert len(set(whole.streams)) == 4
    model: Any = Scripted([0] * 5, [1] * 5)
    study = task(stream="0 weak")
    play(study, model, 2)
    again = task(stream="0 weak")
    again.restore(study.state())
    play(again, model, 2)
    assert model.streams == whole.streams


def test_no_two_devices_or_seeds_draw_from_the_same_stream() -> None:
    drawn: list[int] = []
    for stream in ("0 weak", "0 powerful", "1 weak", "1 powerful"):
        model: Any = Scripted([0] * 4, [1] * 4)
        play(task(stream=stream), model, 3)
        drawn += model.streams
    assert len(set(drawn)) == len(drawn) == 4 * 3
    assert all(0 < number < 2**31 for number in drawn)


@pytest.mark.parametrize("validated", [False, True])
def test_who_was_killed_before_validating_does_it_before_training(validated: bool) -> None:
    """The state of round 2 was saved, and the device killed before or after it had validated."""
    model: Any = Scripted([1, 2, 9, 3], [1] * 4)
    study = task()
    play(study, model, 1)
    list(study.train(model, STEPS, "delta"))
    state, again = study.state(), task(on_scores=lambda round, scores: reported.append(round))
    reported: list[int] = []
    again.restore(state)
    if validated:
        again.evaluate(model)
    play(again, model, 1)
    assert reported == [2, 3]
    assert (again.best_round, again.best_scores["accuracy"]) == (2, 0.9)


def test_the_test_set_is_used_in_its_rounds_alone() -> None:
    model: Any = Scripted([5] * 4, [1] * 4)
    scores = play(task(test_rounds=[1, 3]), model, 3)
    assert scores == [
        {"validation_accuracy": 0.5, "validation_loss": 1.0, "test_accuracy": 1 / 20},
        {"validation_accuracy": 0.5, "validation_loss": 1.0},
        {"validation_accuracy": 0.5, "validation_loss": 1.0, "test_accuracy": 3 / 20},
    ]


def test_validating_on_fewer_examples() -> None:
    class Counting(Scripted):
        counted = 0

        def call(self, signature: str, /, **inputs: Any) -> dict[str, Any]:
            if signature == "evaluate":
                self.counted += int((inputs["y"] >= 0).sum())
            return super().call(signature, **inputs)

    for validate_on, expected in ((None, 10), (4, 4), (99, 10)):
        model: Any = Counting([5], [1])
        task(validate_on=validate_on).evaluate(model)
        assert model.counted == expected
