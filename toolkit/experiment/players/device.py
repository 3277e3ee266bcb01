"""A device of the study of players: its game, its replay, and a test before every merge."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from broker.log import Log
from broker.protocol.slice import Tensors
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.experiment.device import StudyDevice, Tell
from toolkit.experiment.figures.players_summary import WINDOW
from toolkit.experiment.players.cell import RlCell
from toolkit.experiment.players.games import player
from toolkit.experiment.players.virtual_clock import Turns
from toolkit.experiment.running.results import Final, Point
from toolkit.experiment.supervised.branches import player_branch
from toolkit.fleet.in_one_process import NEVER


class RlDevice(StudyDevice):
    """Plays and learns; `turns` are those of a fleet in which nobody waits."""

    def __init__(
        self, cell: RlCell, turns: Turns | None, name: str, log: TextIO, tell: Tell
    ) -> None:
        super().__init__(cell, name, player_branch(cell, name), log)
        self._task = player(cell, name)
        self._scores: list[float] = []
        self._tell = tell
        self.rounds = _PlayedRounds(
            Learner(self.model, self._task, self.shared),
            Plan(cell.steps(name), checkpoint_seconds=NEVER, resend_seconds=NEVER),
            self.log,
            device=name,
            turns=turns,
            test=self._test,
        )

    def final(self) -> Final:
        """The mean of the last test episodes."""
        return Final(self.name, {"score": statistics.fmean(self._scores[-WINDOW:])})

    def _test(self, loss: float) -> None:
        score = self._task.evaluate(self.model)["score"]
        self._scores.append(score)
        scores = {"score": score, "steps": self._task.steps_taken, "loss": loss}
        self._tell(Point(self.name, len(self._scores), scores))


def turns_of(cell: RlCell) -> Turns | None:
    """None where all wait for each other."""
    if cell.coordinator != "async":
        return None
    return Turns({d: (cell.steps(d) / cell.rate(d), cell.rounds(d)) for d in cell.devices})


class _PlayedRounds(Rounds):
    """A test episode before every merge, and none after it."""

    def __init__(
        self,
        learner: Learner,
        plan: Plan,
        log: Log,
        *,
        device: str,
        turns: Turns | None,
        test: Callable[[float], None],
    ) -> None:
        super().__init__(learner, _NoCheckpoints(), plan, log)
        self._device = device
        self._turns = turns
        self._test = test

    def train(self, *, run: str, round: int, exchange: str, base: Tensors, done: int = 0) -> float:
        if self._turns is None or self._turns.take(self._device, self.check_stop):
            loss = super().train(run=run, round=round, exchange=exchange, base=base, done=done)
            self._test(loss)
            return loss
        # The fleet has just finished, which its agent does not know yet: it will be refused.
        self.plan = replace(self.plan, steps=1)
        return super().train(run=run, round=round, exchange=exchange, base=base)

    def evaluate(self, round: int, *, last: bool = False) -> dict[str, float]:
        """Asked for whenever there is a new θ."""
        if self._turns is not None:
            self._turns.arrive(self._device)
        return {}


class _NoCheckpoints(Checkpoints):
    """A cell that is killed starts from its beginning."""

    def __init__(self) -> None:
        """There is no folder."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Nothing is kept."""

    def load(self) -> None:
        """Nothing was."""
