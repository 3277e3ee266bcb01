"""Training without a fleet: the baseline, with the same steps and checkpoints."""

from __future__ import annotations

from firmware_sim.errors import CheckpointError
from firmware_sim.training.rounds import Rounds

RUN = "isolated"


def train_alone(rounds: Rounds, count: int) -> dict[str, float]:
    """Trains `count` rounds, those before a restart included; returns the last scores."""
    left = rounds.resume()
    if left is not None and left.run != RUN:
        raise CheckpointError("the checkpoint was made in a fleet; give another --state.")
    first, done = (left.round, left.steps_done) if left else (0, 0)
    scores = rounds.evaluate(0) if left is None else {}
    for number in range(first, count):
        rounds.train(run=RUN, round=number, exchange="delta", base={}, done=done)
        done = 0
        rounds.learner.task.synchronised(rounds.learner.model)
        rounds.save(run=RUN, round=number + 1, done=0)
        scores = rounds.evaluate(number + 1, last=number + 1 == count)
        rounds.check_stop()
    return scores or rounds.evaluate(count, last=True)
