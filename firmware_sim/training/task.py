"""What a device trains on: the contract of every task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from firmware_sim.errors import TaskError
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model

# What is exchanged decides which signature takes a mini-batch.
SIGNATURES = {"delta": "train", "gradient": "accumulate"}


class Task(Protocol):
    """Local data, and how a model is trained and evaluated on them."""

    @property
    def samples(self) -> int:
        """|D_k|: the number of local examples; a merge may be weighted by it."""

    def waits_for(self) -> str:
        """Returns what the task lacks for its next mini-batch, in one sentence, or nothing."""

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        """Yields the losses of `steps` mini-batches; it may be stopped between any two."""

    def evaluate(self, model: Model) -> dict[str, float]:
        """Returns the scores on the test set, or of test episodes; training is not affected."""

    def state(self) -> dict[str, Array]:
        """Returns all that `restore` needs; the model's own state is `get_state`.

        A device that restores both continues bit for bit, unless its branch has dropout: the
        runtime does not show the state of its random numbers, and starts them anew with a model.
        """

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continues from `state`; raises `TaskError` if it was saved with other data."""

    def synchronised(self, model: Model) -> None:
        """Must be called whenever the model was given a new θ_shared."""


def signature_for(exchange: str) -> str:
    try:
        return SIGNATURES[exchange]
    except KeyError:
        raise TaskError(
            f"there is no exchange {exchange!r}; there are {' and '.join(SIGNATURES)}."
        ) from None
