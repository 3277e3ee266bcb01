"""Tasks with examples to learn from: a share of a training set, and a test set common to all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from firmware_sim.bundle.reader import Bundle
from firmware_sim.bundle.target import A_CLASS, Target
from firmware_sim.errors import TaskError
from firmware_sim.normalisation import Normalisation
from firmware_sim.tasks.anomaly import (
    QUANTILE,
    THRESHOLD,
    check_quantile,
    with_threshold,
    without_threshold,
)
from firmware_sim.tasks.measures import Scores
from firmware_sim.tasks.supervised import Batches, evaluate, train
from firmware_sim.tasks.targets import RowInFile, as_targets, first_row
from firmware_sim.tensor_spec import Array, TensorSpec
from firmware_sim.training.features import FeatureCache
from firmware_sim.training.runtime import Model
from firmware_sim.training.task import signature_for
from firmware_sim.training.task_state import arrays_digest, pack, unpack

# All devices divide the same order among themselves, independent of their own seeds.
DIVISION_SEED = 0
TEST_SHARE = 5  # every fifth example of an undivided set is kept for the test


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets to train on, and others to test with.

    Without targets, as an autoencoder needs them, every row of y is empty.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    undivided: tuple[str, str] | None = None  # names of x and y where one array holds both parts

    def without_targets(self) -> Examples:
        """Returns the inputs alone."""
        return replace(self, y_train=no_targets(self.x_train), y_test=no_targets(self.x_test))


def no_targets(x: Array) -> Array:
    """Returns an empty row for each example."""
    return np.empty((len(x) if x.ndim else 0, 0), np.float32)


def hold_out(x: Array, y: Array, *, names: tuple[str, str]) -> Examples:
    """Divides the examples of an undivided set, whose arrays are called so."""
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise TaskError(f"examples {list(x.shape)} and targets {list(y.shape)} do not match.")
    test = np.arange(len(x)) % TEST_SHARE == 0
    return Examples(x[~test], y[~test], x[test], y[test], names)


class LabelledTask:
    """Mini-batches of a device's own examples, each at most once per pass over them."""

    def __init__(
        self,
        examples: Examples,
        *,
        batch: int,
        seed: int,
        target: Target = A_CLASS,
        quantile: float = QUANTILE,
        cache: FeatureCache | None = None,
    ) -> None:
        """`quantile` is that of the threshold of anomalies (`firmware_sim.tasks.anomaly`).

        A cache keeps the features of the examples to train on.
        """
        self._cache = cache
        self._examples = examples
        self._target = target
        self._quantile = check_quantile(quantile)
        self.threshold: float | None = None  # of anomalies, when it was measured last
        self._batches = Batches(len(examples.x_train), batch, seed=seed)

    @property
    def samples(self) -> int:
        return len(self._examples.x_train)

    def waits_for(self) -> str:
        return ""

    @property
    def steps_taken(self) -> int:
        """Mini-batches trained so far, those before a restart included."""
        b = self._batches
        return (b.epoch * b.count + b.position) // b.size

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        x, y, signature = self._examples.x_train, self._examples.y_train, signature_for(exchange)
        return train(
            model, x, y, self._batches, steps=steps, signature=signature, cache=self._cache
        )

    def evaluate(self, model: Model) -> Scores:
        x, y = self._examples.x_test, self._examples.y_test
        found = evaluate(model, x, y, self._target, quantile=self._quantile)
        self.threshold = found.get(THRESHOLD)
        return found

    def state(self) -> dict[str, Array]:
        b = self._batches
        found = pack(self._digest, seed=b.seed, epoch=b.epoch, position=b.position)
        return with_threshold(found, self.threshold)

    def restore(self, state: Mapping[str, Array]) -> None:
        own, threshold = without_threshold(state)
        seed, epoch, position = unpack(own, self._digest, "seed", "epoch", "position")
        if position > self.samples:
            raise TaskError(
                f"position in the state of a task is {position}, of {self.samples} examples."
            )
        size = self._batches.size
        self.threshold = threshold
        self._batches = Batches(self.samples, size, seed=seed, epoch=epoch, position=position)

    def synchronised(self, model: Model) -> None:
        """Nothing to do: there is no target network."""

    @cached_property
    def _digest(self) -> bytes:
        return arrays_digest(self._examples.x_train, self._examples.y_train)


def check_kind(task: str, bundle: Bundle, example: TensorSpec | None = None) -> Target:
    """Returns the target; raises `TaskError` unless the bundle learns from such examples."""
    inputs, target = bundle.training_inputs, bundle.manifest.branch.target
    if target is None:
        older = "; if it learns from numbers, export it again" if "y" in inputs else ""
        raise TaskError(
            f"the task {task} needs a bundle that learns from examples; the one at "
            f"{bundle.folder} trains on {', '.join(inputs)}{older}."
        )
    takes = inputs["x"].of_one
    if example is not None and takes != example:
        raise TaskError(
            f"the task {task} has examples of {example}; the bundle at {bundle.folder} "
            f"takes {takes}."
        )
    return target


def check_examples(source: str, examples: Examples, x: TensorSpec, target: Target) -> Examples:
    """Returns them with targets in the bundle's type; `x` is one example of the branch.

    Raises `TaskError` for arrays that do not match each other, or the branch.
    """
    if target.kind == "input":
        examples = examples.without_targets()
    found: dict[str, Any] = {}
    for part in ("train", "test"):
        inputs: Array = getattr(examples, f"x_{part}")
        targets: Array = getattr(examples, f"y_{part}")
        x_name, y_name = examples.undivided or (f"x_{part}", f"y_{part}")
        row = partial(_row_in_file, part) if examples.undivided else int
        _check_inputs(inputs, x, name=x_name, source=source, row=row)
        if not targets.ndim or len(inputs) != len(targets) or not len(inputs):
            raise TaskError(
                f"{source} holds {len(inputs)} examples as {x_name} and "
                f"{len(targets) if targets.ndim else 0} targets as {y_name}, to {part} with."
            )
        if target.kind != "input":
            if targets.shape[1:] == (0,):
                raise TaskError(f"{source} holds no {y_name}; only an autoencoder needs none.")
            targets = as_targets(targets, target, name=y_name, source=source, row=row)
        found |= {f"x_{part}": inputs, f"y_{part}": targets}
    return replace(examples, **found)


def normalised(examples: Examples, found: Normalisation | None) -> Examples:
    """Returns the examples as the branch sees them."""
    if found is None:
        return examples
    return replace(
        examples, x_train=found.apply(examples.x_train), x_test=found.apply(examples.x_test)
    )


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


def _row_in_file(part: str, row: int) -> int:
    """Returns which row of an undivided set a row of one part is."""
    return row * TEST_SHARE if part == "test" else row + row // (TEST_SHARE - 1) + 1


def _check_inputs(array: Array, x: TensorSpec, *, name: str, source: str, row: RowInFile) -> None:
    if not array.ndim or array.shape[1:] != x.shape or array.dtype != x.dtype:
        raise TaskError(
            f"{source} holds {name} as {array.dtype}{list(array.shape)}; "
            f"the branch takes {x.dtype}{[len(array) if array.ndim else 0, *x.shape]}."
        )
    if array.dtype.kind == "f" and (first := first_row(~np.isfinite(array))) is not None:
        raise TaskError(
            f"row {row(first)} of {name} in {source} holds a number that is not finite."
        )
