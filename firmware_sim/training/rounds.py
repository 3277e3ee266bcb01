"""Training one round, in steps that survive being killed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from broker.log import Log
from broker.protocol.slice import Tensors
from firmware_sim.errors import CapReached, Diverged, Stopped
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints, Residual
from firmware_sim.training.learner import Learner


@dataclass(frozen=True)
class Plan:
    """How a device works."""

    steps: int  # mini-batches in a round
    evaluate_every: int = 1  # rounds
    checkpoint_seconds: float = 60.0  # at most so much work is done twice after a kill
    resend_seconds: float = 10.0  # silence after which a message is sent again


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
    ) -> None:
        self.learner = learner
        self.plan = plan
        self._checkpoints = checkpoints
        self._log = log
        self._clock = clock
        self._cap_reached = cap_reached
        self._alive = alive  # hears, step by step, that the work goes on
        self._stopping: type[Stopped] | None = None

    @property
    def residual(self) -> Residual:
        """What rounding kept back of the updates so far; it is part of every checkpoint."""
        return self._checkpoints.residual

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stopping = Stopped

    def check_stop(self) -> None:
        """To be called by whoever waits between rounds, often."""
        self._alive()
        if self._stopping:
            raise self._stopping.keeping(self._checkpoints.folder)

    def resume(self) -> Checkpoint | None:
        """Restores what a predecessor left, if there was one."""
        checkpoint = self._checkpoints.load()
        if checkpoint is not None:
            self.learner.restore(checkpoint.learner)
            self._log.event(
                "resumed",
                round=checkpoint.round,
                steps_done=checkpoint.steps_done,
                unsent=bool(checkpoint.outbox),
            )
            return replace(checkpoint, learner={})
        return None

    def train(self, *, run: str, round: int, exchange: str, base: Tensors, done: int = 0) -> float:
        """The mean loss over what was left of the round after `done` steps.

        At least one step is taken, also if the plan has become shorter than what is done.
        """
        begin = saved = self._clock()
        total, first = 0.0, done
        steps = max(done + 1, self.plan.steps)
        for loss in self.learner.train(steps - done, exchange):
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
            # After its last step the round is whole, and whoever asked for it saves it as such.
            due = self._stopping or now - saved > self.plan.checkpoint_seconds
            if due and done < steps:
                self.save(run=run, round=round, done=done, base=base)
                self.check_stop()
                saved = now
        taken = done - first
        mean = total / taken
        seconds = float(f"{self._clock() - begin:.3f}")  # milliseconds are enough
        self._log.event("trained", round=round, steps=taken, loss=mean, seconds=seconds)
        return mean

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
        """The scores, if this round is one to be evaluated."""
        if not last and round % self.plan.evaluate_every:
            return {}
        self._alive()  # now comes the longest piece of work
        scores = self.learner.evaluate()
        self._log.event("evaluated", round=round, **scores)
        return scores


def mini_batches(steps: int, rate: float) -> int:
    """Returns the number of mini-batches that a device trains of a full round of `steps`."""
    return max(1, round(steps * rate))
