"""Supervised training and evaluation of a loaded bundle, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from firmware_sim.bundle.manifest import FEATURES
from firmware_sim.bundle.target import A_CLASS, Target
from firmware_sim.errors import WrongInput
from firmware_sim.tasks.anomaly import QUANTILE
from firmware_sim.tasks.measures import Scores, sums_for
from firmware_sim.tensor_spec import Array, TensorSpec
from firmware_sim.training.features import FeatureCache
from firmware_sim.training.prefixed import PrefixedModel
from firmware_sim.training.runtime import Model
from firmware_sim.training.steps import take_batch


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
    model: Model,
    x: Array,
    y: Array,
    batches: Batches,
    *,
    steps: int,
    signature: str = "train",
    cache: FeatureCache | None = None,
) -> Iterator[float]:
    """Trains on the next `steps` mini-batches, each with one call, and yields the losses.

    A cache keeps the features of the examples, if the model has a prefix that makes them.
    """
    _check_examples(x, y)
    for _ in range(steps):
        batch = batches.next()
        if cache is not None and isinstance(model, PrefixedModel):
            features = cache.take(batch, lambda numbers: model.features(x[numbers]))
            yield take_batch(model, signature, **{"x" + FEATURES: features}, y=y[batch])
        else:
            yield take_columns(model, signature, x[batch], y[batch])


def take_columns(model: Model, signature: str, x: Array, y: Array) -> float:
    """Trains on one mini-batch and returns its loss; an autoencoder does not look at `y`."""
    return take_batch(model, signature, **_columns(model.inputs(signature), x, y))


def evaluate(
    model: Model, x: Array, y: Array, target: Target = A_CLASS, *, quantile: float = QUANTILE
) -> Scores:
    """Returns the measures of all examples."""
    _check_examples(x, y)
    size = batch_size(model)
    parts = (slice(start, start + size) for start in range(0, len(x), size))
    batches = ((x[part], y[part]) for part in parts)
    return evaluate_batches(model, batches, target, quantile=quantile)


def evaluate_batches(
    model: Model,
    batches: Iterable[tuple[Array, Array]],
    target: Target = A_CLASS,
    *,
    quantile: float = QUANTILE,
) -> Scores:
    """Returns the measures of all examples in batches of at most `batch_size`, or nothing.

    Rows that fill up a batch do not count.
    """
    takes, size = model.inputs("evaluate"), batch_size(model)
    sums, found = sums_for(target, quantile), False
    for x, y in batches:
        columns = _columns(takes, x, y)
        filled = {name: _filled(name, rows, size) for name, rows in columns.items()}
        sums.add(columns["x" if target.kind == "input" else "y"], model.call("evaluate", **filled))
        found = True
    return sums.scores() if found else {}


def batch_size(model: Model) -> int:
    """Returns the number of examples that `evaluate` takes at once."""
    return model.inputs("evaluate")["x"].shape[0]


def _columns(takes: Mapping[str, TensorSpec], x: Array, y: Array) -> dict[str, Array]:
    """Returns what a signature takes of the examples: an autoencoder takes no y."""
    _check_examples(x, y)
    return {"x": x, "y": y} if "y" in takes else {"x": x}


def _check_examples(x: Array, y: Array) -> None:
    if not x.size or not y.ndim or len(x) != len(y):
        raise WrongInput(f"examples {list(x.shape)} and labels {list(y.shape)} do not match.")


def _filled(name: str, rows: Array, size: int) -> Array:
    """Returns the rows and as many more as a batch lacks; a label of -1 does not count."""
    if len(rows) == size:
        return rows
    value = -1 if name == "y" and rows.dtype == np.int32 else 0
    more = np.full((size - len(rows), *rows.shape[1:]), value, rows.dtype)
    return np.concatenate([rows, more])
