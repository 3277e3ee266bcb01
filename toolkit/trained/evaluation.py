"""How good a trained branch is on test data, class by class, in the device's runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.bundle.reader import open_bundle
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import runtime_for
from toolkit.errors import ModelError
from toolkit.trained.device_answers import answers, load_model
from toolkit.trained.given_data import read_given
from toolkit.trained.weights import read_trained


@dataclass(frozen=True)
class ClassScore:
    """One class: of its examples the part that was found, and of what was found the right part."""

    examples: int
    recall: float | None  # None: there are no such examples
    precision: float | None  # None: no example was taken for it
    f1: float | None


@dataclass(frozen=True)
class Evaluation:
    """The scores of one set of weights on one set of examples."""

    weights: str  # whose they are, in words
    runtime: str
    examples: int
    accuracy: float
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]  # [true class][answer] → examples

    def to_json(self) -> Mapping[str, Any]:
        return {**vars(self), "classes": [vars(score) for score in self.classes]}


def evaluate(
    folder: Path, *, state: Path | None = None, shared: Path | None = None, data: Path
) -> Evaluation:
    """Returns the scores of a device's weights, a fleet's, or those of the export."""
    bundle = open_bundle(folder)
    target = bundle.manifest.branch.target
    if target is not None and not target.is_class:
        raise ModelError(
            f"classes are counted, and {bundle.manifest.branch.name} has none: a device's log "
            "states its errors."
        )
    weights = read_trained(bundle, state, shared)
    examples = read_given(bundle, data, weights.normalisation)
    runtime = runtime_for(bundle)
    model = load_model(bundle.model, weights.state, runtime=runtime)
    outputs = answers(model, examples.x_test)
    confusion = confusion_of(outputs.argmax(-1), examples.y_test, outputs.shape[-1])
    return Evaluation(
        weights=weights.origin,
        runtime=runtime,
        examples=len(examples.x_test),
        accuracy=float(np.trace(confusion) / confusion.sum()),
        classes=tuple(_score(confusion, number) for number in range(len(confusion))),
        confusion=tuple(tuple(map(int, row)) for row in confusion),
    )


def confusion_of(found: Array, wanted: Array, classes: int) -> Array:
    """Returns the number of examples by true class and answer; a label of -1 does not count.

    A label that the branch cannot answer has a row of its own.
    """
    size = max(classes, int(wanted.max(initial=0)) + 1)
    counted = np.zeros((size, size), np.int64)
    known = wanted >= 0
    np.add.at(counted, (wanted[known], found[known]), 1)
    return counted


def _score(confusion: Array, number: int) -> ClassScore:
    right, there, said = (
        int(n)
        for n in (confusion[number, number], confusion[number].sum(), confusion[:, number].sum())
    )
    return ClassScore(
        examples=there,
        recall=right / there if there else None,
        precision=right / said if said else None,
        f1=2 * right / (there + said) if there + said else None,
    )
