"""A device of the study of players: its game, its replay, and a test before every merge."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from broker.log import Log
from broker.protocol.slice import Tensors
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.experiment.device import StudyDevice
from toolkit.experiment.players.branches import player_branch
from toolkit.experiment.players.cell import PlayerCell
from toolkit.experiment.players.games import make_task
from toolkit.experiment.players.virtual_clock import VirtualClock
from toolkit.experiment.scores import Final, OnPoint, Point
from toolkit.fleet.in_one_process import NEVER


class PlayerDevice(StudyDevice):
    """Plays and learns; `clock` is the virtual clock of an asynchronous fleet."""

    def __init__(
        self,
        cell: PlayerCell,
        clock: VirtualClock | None,
        name: str,
        log: TextIO,
        on_point: OnPoint,
    ) -> None:
        super().__init__(cell, name, player_branch(cell, name), log)
        self._task = make_task(cell, name)
        self._scores: list[float] = []
        self._window = cell.window(name)
        self._on_point = on_point
        self.rounds = _PlayerRounds(
            Learner(self.model, self._task, self.shared, device=f"{cell.seed} {name}"),
            Plan(cell.steps(name), checkpoint_seconds=NEVER, resend_seconds=NEVER),
            self.log,
            device=name,
            clock=clock,
            test=self._test,
        )

    def final(self) -> Final:
        """Returns the mean score of the last part of the tests."""
        return Final(self.name, {"score": statistics.fmean(self._scores[-self._window :])})

    def _test(self, loss: float) -> None:
        score = self._task.evaluate(self.model)["score"]
        self._scores.append(score)
        scores = {"score": score, "steps": self._task.steps_taken, "loss": loss}
        self._on_point(Point(self.name, len(self._scores), scores))


class _PlayerRounds(Rounds):
    """Rounds that are tested before every merge, and not after it."""

    def __init__(
        self,
        learner: Learner,
        plan: Plan,
        log: Log,
        *,
        device: str,
        clock: VirtualClock | None,
        test: Callable[[float], None],
    ) -> None:
        super().__init__(learner, _NoCheckpoints(), plan, log)
        self._device = device
        self._virtual_clock = clock
        self._test = test

    def train(self, *, run: str, round: int, exchange: str, base: Tensors, done: int = 0) -> float:
        if self._virtual_clock is None or self._virtual_clock.wait_for_round(
            self._device, self.check_stop
        ):
            loss = super().train(run=run, round=round, exchange=exchange, base=base, done=done)
            self._test(loss)
            return loss
        # All rounds of the fleet are trained, but the agent does not know it yet. It needs an
        # update to send, as short as possible; the aggregator will refuse it.
        self.plan = replace(self.plan, steps=1)
        return super().train(run=run, round=round, exchange=exchange, base=base)

    def evaluate(self, round: int, *, last: bool = False) -> dict[str, float]:
        """Called whenever the device has received a new θ_shared."""
        if self._virtual_clock is not None:
            self._virtual_clock.mark_ready(self._device)
        return {}


class _NoCheckpoints(Checkpoints):
    """Saves nothing: a cell of players that is killed starts again."""

    folder = Path("no-folder-of-checkpoints")  # nothing is ever read from it or written to it

    def __init__(self) -> None:
        """Makes no folder."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Does nothing."""

    def load(self) -> None:
        """Returns None: there is no checkpoint."""
