"""A cell: one training of a study, and all that decides its outcome.

Here is what all cells have; `supervised_cell` and `rl_cell` say what else theirs have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from toolkit.errors import ExperimentError

MODES = ("isolated", "homogeneous", "heterogeneous")
ENGINES = ("tf", "tflite")
WEAK, POWERFUL = "weak", "powerful"
DEVICES = (WEAK, POWERFUL)
ANY = "any"  # a choice in which nothing depends on it
BATCH = 32  # examples, or steps of a game, in a mini-batch


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all cells of a study have in common."""

    task: str
    rounds: int = 100
    learning_rate: float | None = None  # None: what the branch has
    engine: str = "tf"

    def __post_init__(self) -> None:
        check_known("engine", [self.engine], ENGINES)
        if self.learning_rate is not None and not 0 < self.learning_rate < 10:
            raise ExperimentError(
                f"a learning rate of {self.learning_rate} is not above 0 and below 10."
            )


@dataclass(frozen=True, kw_only=True)
class Cell(ABC):
    """`devices` train in `mode`, all random numbers drawn from `seed`."""

    # Whether a cell that was killed goes on where it was; otherwise it starts from its beginning.
    goes_on: ClassVar[bool]

    settings: Settings
    mode: str
    devices: tuple[str, ...]
    seed: int

    @property
    @abstractmethod
    def name(self) -> str:
        """Tells the cells of a study apart; also the name of the file with its results."""

    @abstractmethod
    def model_key(self, device: str) -> tuple[object, ...]:
        """Cells and devices with the same key train the same network, from weights of their own."""

    @property
    def who(self) -> str:
        return self.devices[0] if len(self.devices) == 1 else "both"

    def kind(self, device: str) -> str:
        """Its branch: where all are alike, everybody trains the lightweight one."""
        return "complex" if device == POWERFUL and self.mode != "homogeneous" else "lightweight"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"devices": list(self.devices)}


def check_known(what: str, chosen: Iterable[str], known: Sequence[str]) -> None:
    for one in chosen:
        if one not in known:
            raise ExperimentError(f"there is no {what} {one!r}; there are {', '.join(known)}.")
