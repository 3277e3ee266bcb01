"""Training alone: the baseline without any broker, with the same steps and checkpoints."""

from __future__ import annotations

from firmware_sim.rounds import Rounds

RUN = "isolated"


def train_alone(rounds: Rounds, count: int) -> dict[str, float]:
    """`count` rounds, those of a predecessor included; answers the last scores."""
    left = rounds.resume()
    first, done = (left.round, left.steps_done) if left else (0, 0)
    for number in range(first, count):
        rounds.train(run=RUN, round=number, exchange="delta", base={}, done=done)
        done = 0
        rounds.learner.task.synchronised(rounds.learner.model)
        rounds.save(run=RUN, round=number + 1, done=0)
        rounds.evaluate(number + 1, last=number + 1 == count)
        rounds.check_stop()
    return rounds.evaluate(count, last=True)
