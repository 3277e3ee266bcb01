"""Supervised training and evaluation of a loaded bundle, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firmware_sim.errors import WrongInput
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model
from firmware_sim.training.steps import take_batch


@dataclass(frozen=True)
class Score:
    """Mean loss and part of correct classifications over a set of examples."""

    loss: float
    accuracy: float


class Batches:
    """Endless mini-batches of example numbers, each number once per pass over them.

    The order of a pass follows from (seed, epoch), so seed, epoch and position are all its state.
    A batch runs on into the next pass, or over several if there are fewer examples than it holds.
    """

    def __init__(
        self, count: int, size: int, *, seed: int, epoch: int = 0, position: int = 0
    ) -> None:
        if count < 1:
            raise WrongInput("there are no examples to train on.")
        self.count = count
        self.size = size
        self.seed = seed
        self.epoch = epoch
        self.position = position  # number of examples of this pass that are drawn
        self._order = self._order_of_pass()

    def next(self) -> Array:
        drawn = self._order[self.position : self.position + self.size]
        self.position += len(drawn)
        while len(drawn) < self.size:
            self.epoch += 1
            self._order = self._order_of_pass()
            more = self._order[: self.size - len(drawn)]
            self.position = len(more)
            drawn = np.concatenate([drawn, more])
        return drawn

    def _order_of_pass(self) -> Array:
        return np.random.default_rng((self.seed, self.epoch)).permutation(self.count)


def train(
    model: Model, x: Array, y: Array, batches: Batches, *, steps: int, signature: str = "train"
) -> Iterator[float]:
    """Trains on the next `steps` mini-batches, each with one call, and yields the losses."""
    _check_examples(x, y)
    for _ in range(steps):
        batch = batches.next()
        yield take_batch(model, signature, x=x[batch], y=y[batch])


def evaluate(model: Model, x: Array, y: Array) -> Score:
    """Evaluates all examples; rows labelled -1 pad the last batch and do not count."""
    _check_examples(x, y)
    takes = model.inputs("evaluate")
    if takes["y"].dtype != np.int32:
        raise WrongInput("only branches that tell classes apart have an accuracy.")
    size = takes["x"].shape[0]
    loss = correct = 0.0
    for start in range(0, len(x), size):
        images, labels = x[start : start + size], y[start : start + size]
        missing = size - len(images)
        if missing:
            images = np.concatenate([images, np.zeros((missing, *x.shape[1:]), x.dtype)])
            labels = np.concatenate([labels, np.full(missing, -1, y.dtype)])
        answer = model.call("evaluate", x=images, y=labels)
        loss += float(answer["loss"])
        correct += float(answer["correct"])
    return Score(loss / len(x), correct / len(x))


def _check_examples(x: Array, y: Array) -> None:
    if not x.size or not y.ndim or len(x) != len(y):
        raise WrongInput(f"examples {list(x.shape)} and labels {list(y.shape)} do not match.")
