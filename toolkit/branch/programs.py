"""The programs of a branch: what its training module replays, with frozen tensors as constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolkit.autodiff import Program
from toolkit.autodiff.freezing import Cut, find_cut, freeze
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised

Weights = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Programs:
    """One branch for one micro-batch; where there is a `cut`, they start from its features."""

    training: Program  # of a micro-batch
    inference: Program  # of a micro-batch
    single: Program  # inference on one example
    frozen: Weights  # the tensors that are constants in all of them
    cut: Cut | None = None


def programs_of(branch: Branch, micro_batch: int, *, whole: bool = False) -> Programs:
    """With `whole` nothing is cut off: the programs start from the examples.

    Nor is it of an autoencoder, whose loss compares with the examples.
    """
    learning = branch.learning
    whole = whole or (isinstance(learning, Supervised) and learning.target == "input")
    training = branch.trace(batch=micro_batch, training=True)
    kept = {*branch.trainable_names, *branch.received_names, *training.updates}
    frozen = {name: value for name, value in branch.weights().items() if name not in kept}
    inference, single = (
        freeze(branch.trace(batch=size, training=False), frozen) for size in (micro_batch, 1)
    )
    training = freeze(training, frozen)
    cut = None if whole or not frozen else find_cut(inference, training)
    if cut is None:
        return Programs(training, inference, single, frozen)
    return Programs(
        training=cut.head(training, inference),
        inference=cut.head(inference, inference),
        single=cut.head(single, single),
        frozen=frozen,
        cut=cut,
    )


def prefix_program(branch: Branch, programs: Programs, batch: int) -> Program:
    """features = prefix(x) for that many examples."""
    assert programs.cut is not None
    inference = freeze(branch.trace(batch=batch, training=False), programs.frozen)
    return programs.cut.prefix(inference)
