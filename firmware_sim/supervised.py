"""Supervised training and evaluation of a loaded bundle, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firmware_sim.runtime import Array, Model, WrongInput


@dataclass(frozen=True)
class Score:
    """Mean loss and share of right answers over a set of examples."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Step:
    """One training step: its loss and how long it took."""

    loss: float
    seconds: float


def train(model: Model, x: Array, y: Array, *, steps: int, seed: int) -> Iterator[Step]:
    """`steps` mini-batches drawn at random, each example at most once per pass over the data."""
    _check_examples(x, y)
    rng = np.random.default_rng(seed)
    size = model.inputs("train")["x"].shape[0]
    order = np.empty(0, np.int64)
    for _ in range(steps):
        while len(order) < size:
            order = np.concatenate([order, rng.permutation(len(x))])
        batch, order = order[:size], order[size:]
        begin = time.perf_counter()
        loss = model.call("train", x=x[batch], y=y[batch])["loss"]
        yield Step(float(loss), time.perf_counter() - begin)


def evaluate(model: Model, x: Array, y: Array) -> Score:
    """All examples once; the last batch is filled up with rows labelled -1, which do not count."""
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
