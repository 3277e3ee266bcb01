"""Trains rounds, with checkpoints from which a killed device continues."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from broker.log import Log
from broker.protocol.slice import Tensors
from firmware_sim.errors import CapReached, CheckpointError, Diverged, Stopped
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints, Residual, Trusted
from firmware_sim.training.learner import Learner
from firmware_sim.training.waiting import Waits

ALONE = "isolated"  # the run of a device without a fleet


@dataclass(frozen=True)
class Plan:
    """How much a device trains, and how often it evaluates, saves and sends again."""

    steps: int  # mini-batches in a round
    evaluate_every: int = 1  # rounds
    checkpoint_seconds: float = 60.0  # the most work that is repeated after a kill
    resend_seconds: float = 10.0  # time without an answer after which a message is sent again


class RoundOver(Exception):
    """Raised by who looks after the fleet while training waits: nobody waits for this round."""


class Rounds:
    """Trains rounds and writes checkpoints on the way."""

    def __init__(
        self,
        learner: Learner,
        checkpoints: Checkpoints,
        plan: Plan,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        cap_reached: Callable[[], bool] = lambda: False,
        alive: Callable[[], None] = lambda: None,
        waits: Waits | None = None,
    ) -> None:
        self.learner = learner
        self.plan = plan
        self.renewed: Callable[[], None] = lambda: None  # called with weights to answer with
        self.waits = waits or Waits(log, clock=clock)
        self.idle: Callable[[float], object] = self._sleep  # while training waits
        self._checkpoints = checkpoints
        self._log = log
        self._clock = clock
        self._cap_reached = cap_reached
        self._alive = alive  # called at every step, for a watchdog
        self._stopping: type[Stopped] | None = None
        self._restored = False
        self._left: Checkpoint | None = None  # of the last process, until `resume` returns it

    @property
    def folder(self) -> Path:
        """Where its checkpoints are."""
        return self._checkpoints.folder

    @property
    def residual(self) -> Residual:
        """The error of rounding in the updates so far; it is part of every checkpoint."""
        return self._checkpoints.residual

    @property
    def trusted(self) -> Trusted:
        """The last good θ_shared; it is part of every checkpoint."""
        return self._checkpoints.trusted

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stopping = Stopped

    def check_stop(self) -> None:
        """Raises `Stopped` after `stop`; must be called often while waiting between rounds."""
        self._alive()
        if self._stopping:
            raise self._stopping.keeping(self._checkpoints.folder)

    def restore(self) -> None:
        """Restores the learner from the checkpoint, if there is one; only the first call does."""
        if self._restored:
            return
        checkpoint = self._checkpoints.load()
        self._restored = True
        if checkpoint is not None:
            self.learner.restore(checkpoint.learner)
            self._left = replace(checkpoint, learner={})
            self._log.event(
                "resumed",
                round=checkpoint.round,
                steps_done=checkpoint.steps_done,
                unsent=bool(checkpoint.outbox),
            )

    def resume(self) -> Checkpoint | None:
        """Restores the learner and returns the rest of the checkpoint, or None without one."""
        self.restore()
        left, self._left = self._left, None
        return left

    def train(self, *, run: str, round: int, exchange: str, base: Tensors, done: int = 0) -> float:
        """Trains the rest of the round after `done` steps and returns its mean loss.

        At least one step is taken, also if the plan is now shorter than `done`. Before every step
        there may be a reason to wait; here alone a device pauses.
        """
        begin = saved = self._clock()
        total, first = 0.0, done
        steps = max(done + 1, self.plan.steps)

        def save() -> None:
            self.save(run=run, round=round, done=done, base=base)

        losses = self.learner.train(steps - done, exchange)
        while done < steps:
            self.waits.before_step(self.idle, save)
            loss = self.waits.step(losses)
            self._alive()
            done += 1
            total += loss
            if not math.isfinite(loss):
                raise Diverged(
                    f"the loss is {loss} in step {done} of round {round}; lower the learning rate."
                )
            self._log.progress(f"round {round}  step {done}/{steps}  loss {loss:.4f}")
            now = self._clock()
            if self._cap_reached():
                self._stopping = CapReached
            # After its last step the round is complete, and the caller saves it as such.
            due = self._stopping or now - saved > self.plan.checkpoint_seconds
            if due and done < steps:
                save()
                self.check_stop()
                saved = now
        taken = done - first
        mean = total / taken
        seconds = float(f"{self._clock() - begin:.3f}")  # milliseconds are enough
        self._log.event("trained", round=round, steps=taken, loss=mean, seconds=seconds)
        return mean

    def _sleep(self, seconds: float) -> None:
        self.check_stop()
        time.sleep(seconds)

    def save(
        self, *, run: str, round: int, done: int, base: Tensors | None = None, outbox: bytes = b""
    ) -> None:
        self._checkpoints.save(
            Checkpoint(
                run=run,
                round=round,
                steps_done=done,
                learner=self.learner.state(),
                base=base or {},
                outbox=outbox,
            )
        )

    def evaluate(self, round: int, *, last: bool = False) -> dict[str, float]:
        """Returns the scores, or nothing if this round is not to be evaluated."""
        if not last and round % self.plan.evaluate_every:
            return {}
        self._alive()  # evaluation takes longer than any step
        scores = self.learner.evaluate()
        self._log.event("evaluated", round=round, **scores)
        return scores


def train_alone(rounds: Rounds, count: int) -> dict[str, float]:
    """Trains `count` rounds, those before a restart included; returns the last scores."""
    left = rounds.resume()
    if left is not None and left.run != ALONE:
        raise CheckpointError("the checkpoint was made in a fleet; give another --state.")
    first, done = (left.round, left.steps_done) if left else (0, 0)
    scores = rounds.evaluate(0) if left is None else {}
    rounds.renewed()
    for number in range(first, count):
        rounds.train(run=ALONE, round=number, exchange="delta", base={}, done=done)
        done = 0
        rounds.learner.task.synchronised(rounds.learner.model)
        rounds.save(run=ALONE, round=number + 1, done=0)
        scores = rounds.evaluate(number + 1, last=number + 1 == count)
        rounds.renewed()
        rounds.check_stop()
    return scores or rounds.evaluate(count, last=True)


def mini_batches(steps: int, rate: float) -> int:
    """Returns the number of mini-batches that a device trains of a full round of `steps`."""
    return max(1, round(steps * rate))
