"""Tasks with labelled examples: a share of a training set, and a test set common to all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import TaskError
from firmware_sim.tasks.supervised import Batches, evaluate, train
from firmware_sim.tensor_spec import Array, TensorSpec
from firmware_sim.training.runtime import Model
from firmware_sim.training.task import signature_for
from firmware_sim.training.task_state import arrays_digest, pack, unpack

# All devices divide the same order among themselves, independent of their own seeds.
DIVISION_SEED = 0


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and labels to train on, and others to test with."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


class LabelledTask:
    """Mini-batches of a device's own examples, each at most once per pass over them."""

    def __init__(self, examples: Examples, *, batch: int, seed: int) -> None:
        self._examples = examples
        self._batches = Batches(len(examples.x_train), batch, seed=seed)

    @property
    def samples(self) -> int:
        return len(self._examples.x_train)

    @property
    def steps_taken(self) -> int:
        """Mini-batches trained so far, those before a restart included."""
        b = self._batches
        return (b.epoch * b.count + b.position) // b.size

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        x, y, signature = self._examples.x_train, self._examples.y_train, signature_for(exchange)
        return train(model, x, y, self._batches, steps=steps, signature=signature)

    def evaluate(self, model: Model) -> dict[str, float]:
        return asdict(evaluate(model, self._examples.x_test, self._examples.y_test))

    def state(self) -> dict[str, Array]:
        b = self._batches
        return pack(self._digest, seed=b.seed, epoch=b.epoch, position=b.position)

    def restore(self, state: Mapping[str, Array]) -> None:
        seed, epoch, position = unpack(state, self._digest, "seed", "epoch", "position")
        if position > self.samples:
            raise TaskError(
                f"position in the state of a task is {position}, of {self.samples} examples."
            )
        size = self._batches.size
        self._batches = Batches(self.samples, size, seed=seed, epoch=epoch, position=position)

    def synchronised(self, model: Model) -> None:
        """Nothing to do: there is no target network."""

    @cached_property
    def _digest(self) -> bytes:
        return arrays_digest(self._examples.x_train, self._examples.y_train)


def check_kind(task: str, bundle: Bundle, example: TensorSpec | None = None) -> TensorSpec:
    """Returns `x` of one step; raises `TaskError` unless the bundle classifies such examples."""
    inputs = bundle.training_inputs
    if inputs.keys() != {"x", "y"} or inputs["y"].dtype != np.int32:
        raise TaskError(
            f"the task {task} needs a bundle that tells classes apart; "
            f"the one at {bundle.folder} trains on {', '.join(inputs)}"
            f"{', with numbers as y' if 'y' in inputs else ''}."
        )
    x = inputs["x"]
    if example is not None and x.of_one != example:
        raise TaskError(
            f"the task {task} has examples of {example}; the bundle at {bundle.folder} "
            f"takes {x.of_one}."
        )
    return TensorSpec((bundle.manifest.batch_size, *x.shape[1:]), x.dtype)


def check_examples(source: str, examples: Examples, x: TensorSpec) -> None:
    """Raises `TaskError` for arrays that do not match each other, or the bundle."""
    for part in ("train", "test"):
        images: Array = getattr(examples, f"x_{part}")
        labels: Array = getattr(examples, f"y_{part}")
        _check_type(source, f"x_{part}", images, x.shape[1:], x.dtype)
        _check_type(source, f"y_{part}", labels, (), np.dtype(np.int32))
        if len(images) != len(labels) or not len(images):
            raise TaskError(
                f"{source} holds {len(images)} examples as x_{part} and "
                f"{len(labels)} labels as y_{part}."
            )
        if labels.min() < 0:
            raise TaskError(f"{source} holds a label below 0 in y_{part}.")
        if images.dtype.kind == "f" and not np.isfinite(images).all():
            raise TaskError(f"{source} holds numbers in x_{part} that are not finite.")


def own_share(examples: Examples, share: tuple[float, float]) -> Examples:
    """Returns a part of the training set; adjoining shares neither overlap nor leave a gap."""
    own = own_numbers(len(examples.x_train), share)
    return Examples(examples.x_train[own], examples.y_train[own], examples.x_test, examples.y_test)


def own_numbers(count: int, share: tuple[float, float]) -> Array:
    """Returns the numbers of the examples, of `count`, that a share consists of."""
    start, stop = (round(fraction * count) for fraction in share)
    if start == stop:
        raise TaskError(f"the share {share[0]}:{share[1]} of {count} examples is empty.")
    return np.random.default_rng(DIVISION_SEED).permutation(count)[start:stop]


def _check_type(
    source: str, name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> None:
    if array.ndim != 1 + len(shape) or array.shape[1:] != shape or array.dtype != dtype:
        raise TaskError(
            f"{source} holds {name} as {array.dtype}{list(array.shape)}; "
            f"the bundle takes {dtype}{[len(array) if array.ndim else 0, *shape]}."
        )
