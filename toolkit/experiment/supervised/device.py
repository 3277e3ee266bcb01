"""A device of the supervised study: its examples, and rounds that can be resumed after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from firmware_sim.tasks.labelled import Examples
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.experiment.cell import POWERFUL, WEAK
from toolkit.experiment.device import StudyDevice
from toolkit.experiment.scores import Final, OnPoint, Point
from toolkit.experiment.supervised.branches import supervised_branch
from toolkit.experiment.supervised.cell import SupervisedCell
from toolkit.experiment.supervised.own_networks import fitted
from toolkit.experiment.supervised.splits import check_split, divide
from toolkit.experiment.supervised.task import StudyTask
from toolkit.fleet.in_one_process import NEVER


class SupervisedDevice(StudyDevice):
    """Trains on its own part of the examples."""

    def __init__(
        self,
        cell: SupervisedCell,
        examples: Examples,
        state: Path,
        name: str,
        log: TextIO,
        on_point: OnPoint,
    ) -> None:
        options = cell.options
        own = options.weak_model is not None
        classes = 0 if own else 1 + int(max(examples.y_train.max(), examples.y_test.max()))
        shape = examples.x_train.shape[1:]
        branch = supervised_branch(cell, name, image_shape=shape, classes=classes)
        target, examples = fitted(branch, examples)
        check_split(options.split, target)
        super().__init__(cell, name, branch, log)
        stream = f"{cell.seed} {name}"
        fractions = {WEAK: cell.weak_fraction, POWERFUL: 1 - cell.weak_fraction}
        self._task = StudyTask(
            examples,
            divide(examples.y_train, fractions, options.split, cell.seed)[name],
            target=target,
            steps=options.steps,
            seed=2 * cell.seed + (name == POWERFUL),
            test_rounds={*range(0, options.rounds, options.test_every), options.rounds},
            validate_on=options.validate_on,
            stream=stream,
            on_scores=lambda round, scores: on_point(Point(name, round, scores)),
        )
        self.rounds = Rounds(
            Learner(self.model, self._task, self.shared, device=stream),
            _WholeRounds(state / name, device=name, bundle=cell.name),
            Plan(options.steps, checkpoint_seconds=NEVER, resend_seconds=NEVER),
            self.log,
        )

    def final(self) -> Final:
        """Returns what the version that validated best reaches on the test set."""
        task, measure = self._task, self._task.measure.name
        task.restore_best(self.model)
        scores = {
            "best_round": task.best_round,
            f"validation_{measure}": task.best_scores[measure],
            f"test_{measure}": task.test(self.model),
        }
        return Final(self.name, scores)


class _WholeRounds(Checkpoints):
    """Saves whole rounds only: the position in the random numbers of a round is unknown."""

    def save(self, checkpoint: Checkpoint) -> None:
        if checkpoint.outbox or not checkpoint.steps_done:
            super().save(checkpoint)
