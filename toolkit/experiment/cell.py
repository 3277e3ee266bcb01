"""A cell: one training run of a study, with everything that decides its outcome.

This module has what all cells have; `supervised/cell.py` and `players/cell.py` add the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_args

from toolkit.errors import ExperimentError

ISOLATED, HOMOGENEOUS, HETEROGENEOUS = "isolated", "homogeneous", "heterogeneous"
SETTINGS = (ISOLATED, HOMOGENEOUS, HETEROGENEOUS)
Engine = Literal["tf", "tflite"]
ENGINES = get_args(Engine)
WEAK, POWERFUL = "weak", "powerful"
DEVICES = (WEAK, POWERFUL)
LIGHTWEIGHT, COMPLEX = "lightweight", "complex"  # branches of the zoo
ANY = "any"  # the value of a field on which the outcome of the cell does not depend
BATCH = 32  # examples, or steps of a game, in a mini-batch
# Result files name some fields as earlier versions did, so that both versions read both.
JSON_NAMES = {"options": "settings", "setting": "mode", "mode": "coordinator"}


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What all cells of a study have in common."""

    task: str
    rounds: int = 100
    learning_rate: float | None = None  # None: the branch's own
    engine: str = "tf"

    def __post_init__(self) -> None:
        check_known("engine", [self.engine], ENGINES)
        if self.learning_rate is not None and not 0 < self.learning_rate < 10:
            raise ExperimentError(
                f"a learning rate of {self.learning_rate} is not above 0 and below 10."
            )


@dataclass(frozen=True)
class Merging:
    """How the fleet of a cell merges."""

    mode: str  # sync or async
    rule: str  # "samples" or "mean": the weights of the updates
    merges: int  # of the whole fleet; in mode async every update is one
    optimizer: str | None = None  # as --optimizer of the aggregator; None: deltas are added


@dataclass(frozen=True, kw_only=True)
class Cell(ABC):
    """`devices` train in `setting`; all random numbers are drawn from `seed`."""

    # Whether a killed cell continues from its last round; otherwise it starts again.
    resumes: ClassVar[bool]
    options_type: ClassVar[type[StudyOptions]]

    options: StudyOptions
    setting: str
    devices: tuple[str, ...]
    seed: int

    @property
    @abstractmethod
    def name(self) -> str:
        """Identifies the cell in its study; also the name of its result file."""

    @property
    @abstractmethod
    def merging(self) -> Merging:
        """How the devices merge if the cell is not isolated."""

    def rounds(self, device: str) -> int:
        """The number of rounds of the device."""
        return self.options.rounds

    @abstractmethod
    def model_key(self, device: str) -> tuple[object, ...]:
        """Equal keys mean the same network; only the initial weights may differ."""

    @property
    def participants(self) -> str:
        """weak, powerful or both."""
        return self.devices[0] if len(self.devices) == 1 else "both"

    def branch(self, device: str) -> str:
        """lightweight or complex; in a homogeneous cell all devices train the lightweight one."""
        complex_ = device == POWERFUL and self.setting != HOMOGENEOUS
        return COMPLEX if complex_ else LIGHTWEIGHT

    def to_json(self) -> dict[str, Any]:
        """Returns the cell as a result file states it."""
        return _json_fields(self) | {JSON_NAMES["options"]: _json_fields(self.options)}

    @classmethod
    def from_json(cls, stated: dict[str, Any]) -> Self:
        """Returns the cell that `to_json` stated."""
        names = {stated: name for name, stated in JSON_NAMES.items()}
        values = {names.get(key, key): _from_json(value) for key, value in stated.items()}
        options = {key: _from_json(value) for key, value in values["options"].items()}
        return cls(**values | {"options": cls.options_type(**options)})


def check_known(what: str, chosen: Iterable[str], known: Sequence[str]) -> None:
    """Raises an ExperimentError if one of `chosen` is not `known`."""
    for one in chosen:
        if one not in known:
            raise ExperimentError(f"there is no {what} {one!r}; there are {', '.join(known)}.")


def _json_fields(thing: Cell | StudyOptions) -> dict[str, Any]:
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    return {
        JSON_NAMES.get(name, name): list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }


def _from_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
