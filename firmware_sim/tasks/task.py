"""The contract between the device agent and what it trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import TaskError
from firmware_sim.training.runtime import Array, Model, TensorSpec

if TYPE_CHECKING:
    from firmware_sim.playing.options import DqnOptions

# What is exchanged decides which signature takes a mini-batch.
SIGNATURES = {"delta": "train", "gradient": "accumulate"}


class Task(Protocol):
    """Local data, and how a model trains and is judged on them."""

    @property
    def samples(self) -> int:
        """|D_k|: how much local data the device holds; merging may weigh by it."""

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        """The losses of `steps` mini-batches; stopping early leaves the task between two."""

    def evaluate(self, model: Model) -> dict[str, float]:
        """What the model is worth on the task's test set, or in a game; training is untouched."""

    def state(self) -> dict[str, Array]:
        """All that `restore` needs to go on; the model's own state is `get_state`.

        Together they continue bit for bit, unless the branch has dropout: the runtime keeps its
        random numbers to itself, and begins them anew with every loaded model.
        """

    def restore(self, state: Mapping[str, Array]) -> None:
        """Goes on where `state` was taken; a state of other data is refused."""

    def synchronised(self, model: Model) -> None:
        """To be called whenever the model was given a new θ_shared."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What a user may say about a task; each task reads the part that concerns it."""

    data: Path | None = None  # npz: a file; cifar10: a folder
    share: tuple[float, float] = (0.0, 1.0)  # from where to where of the training set
    seed: int = 0
    game: str | None = None  # None: the task's usual one
    sticky: float = 0.0  # probability that a game takes the last action again (the paper: 0)
    # None: as many observations as the profile's caps allow (the paper: 100,000 on weak devices,
    # 1,000,000 on powerful ones).
    replay_frames: int | None = None
    replay_folder: Path | None = None  # to keep the replay on disk
    dqn: DqnOptions | None = None  # None: what is usual for the game

    def __post_init__(self) -> None:
        start, stop = self.share
        if not 0 <= start < stop <= 1:
            raise TaskError(
                f"the share {start}:{stop} must run upwards between 0 and 1, as 0:0.2 does."
            )
        if not 0 <= self.seed < 2**63:
            raise TaskError(f"the seed {self.seed} is not between 0 and 2⁶³ - 1.")
        if not 0 <= self.sticky < 1:
            raise TaskError(f"actions cannot be sticky with probability {self.sticky}.")


def signature_for(exchange: str) -> str:
    try:
        return SIGNATURES[exchange]
    except KeyError:
        raise TaskError(
            f"there is no exchange {exchange!r}; there are {' and '.join(SIGNATURES)}."
        ) from None


def training_inputs(bundle: Bundle) -> dict[str, TensorSpec]:
    """What the bundle's `train` takes, as its manifest says."""
    try:
        inputs = bundle.manifest["signatures"]["train"]["inputs"]
        return {
            name: TensorSpec(tuple(int(n) for n in shape), np.dtype(dtype))
            for name, (dtype, shape) in inputs.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TaskError(
            f"the manifest of {bundle.folder} does not say what its training takes."
        ) from None
