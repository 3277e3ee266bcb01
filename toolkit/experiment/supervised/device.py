"""A device of the supervised study: its examples, and rounds that survive being killed."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from firmware_sim.tasks.labelled import Examples
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.experiment.cell import POWERFUL, WEAK
from toolkit.experiment.device import StudyDevice, Tell
from toolkit.experiment.running.results import Final, Point
from toolkit.experiment.supervised.branches import supervised_branch
from toolkit.experiment.supervised.cell import SupervisedCell
from toolkit.experiment.supervised.splits import divide
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
        tell: Tell,
    ) -> None:
        settings = cell.settings
        classes = 1 + int(max(examples.y_train.max(), examples.y_test.max()))
        shape = examples.x_train.shape[1:]
        branch = supervised_branch(cell, name, image_shape=shape, classes=classes)
        super().__init__(cell, name, branch, log)
        fractions = {WEAK: cell.weak_fraction, POWERFUL: 1 - cell.weak_fraction}
        self._task = StudyTask(
            examples,
            divide(examples.y_train, fractions, settings.split, cell.seed)[name],
            steps=settings.steps,
            seed=2 * cell.seed + (name == POWERFUL),
            test_rounds={*range(0, settings.rounds, settings.test_every), settings.rounds},
            validate_on=settings.validate_on,
            tell=lambda round, scores: tell(Point(name, round, scores)),
        )
        self.rounds = Rounds(
            Learner(self.model, self._task, self.shared),
            _WholeRounds(state / name, device=name, bundle=cell.name),
            Plan(settings.steps, checkpoint_seconds=NEVER, resend_seconds=NEVER),
            self.log,
        )

    def final(self) -> Final:
        """The version that validated best, on the test set."""
        task = self._task
        task.take_best(self.model)
        scores = {
            "best_round": task.best_round,
            "validation_accuracy": task.best_accuracy,
            "test_accuracy": task.test(self.model),
        }
        return Final(self.name, scores)


class _WholeRounds(Checkpoints):
    """Keeps no half-trained round: where its random numbers were would be unknown."""

    def save(self, checkpoint: Checkpoint) -> None:
        if checkpoint.outbox or not checkpoint.steps_done:
            super().save(checkpoint)
