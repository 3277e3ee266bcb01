"""A cell: one training of the study, and all that decides its outcome.

Planning is pure. What the topology or branch dropout cannot change is planned once, however many
panels of a figure show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from toolkit.errors import ToolkitError

MODES = ("isolated", "homogeneous", "heterogeneous")
TOPOLOGIES = ("share-first", "cascading")
ENGINES = ("tf", "tflite")
WEAK, POWERFUL = "weak", "powerful"
DEVICES = (WEAK, POWERFUL)
ANY = "any"  # topology of a cell in which nothing depends on it
BATCH = 32  # examples in a mini-batch


class ExperimentError(ToolkitError):
    """A study that cannot be run or drawn so; the text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all cells of a study have in common."""

    task: str
    rounds: int = 100
    examples_per_round: int = 2_000
    learning_rate: float | None = None  # None: what the branch has
    engine: str = "tf"
    split: str = "iid"  # or dirichlet:ALPHA
    validate_on: int | None = None  # at most so many examples of a device's own; None: all
    test_every: int = 1  # rounds between two points of a test curve

    def __post_init__(self) -> None:
        parse_split(self.split)
        if self.engine not in ENGINES:
            raise ExperimentError(
                f"there is no engine {self.engine!r}; there are {' and '.join(ENGINES)}."
            )
        if self.learning_rate is not None and not 0 < self.learning_rate < 10:
            raise ExperimentError(
                f"a learning rate of {self.learning_rate} is not above 0 and below 10."
            )

    @property
    def steps(self) -> int:
        """Mini-batches in a round."""
        return -(-self.examples_per_round // BATCH)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """`devices` train in `mode`; the weak one holds `weak_fraction` of the data."""

    settings: Settings
    mode: str
    topology: str
    devices: tuple[str, ...]
    weak_fraction: float
    seed: int
    branch_dropout: bool = True  # only a cascade has it

    @property
    def name(self) -> str:
        """Tells the cells of a study apart; also the name of the file with its results."""
        who = self.devices[0] if len(self.devices) == 1 else "both"
        dropout = "" if self.branch_dropout else "_no-branch-dropout"
        fraction = f"weak-{self.weak_fraction:g}"
        return f"{self.mode}_{self.topology}_{who}{dropout}_{fraction}_seed-{self.seed}"

    def branch(self, device: str) -> tuple[str, str]:
        """(branch, topology) of a device, as the zoo calls them.

        homogeneous: everybody trains the lightweight branch and shares all of it, which is what
        the lightweight branch of a cascade shares.
        """
        kind = "complex" if device == POWERFUL and self.mode != "homogeneous" else "lightweight"
        return kind, "cascading" if self.topology == ANY else self.topology

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"devices": list(self.devices)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Cell:
        settings = Settings(**found["settings"])
        return cls(**found | {"settings": settings, "devices": tuple(found["devices"])})


def parse_split(split: str) -> float | None:
    """α of `dirichlet:ALPHA`; None of `iid`."""
    if split == "iid":
        return None
    kind, _, number = split.partition(":")
    try:
        alpha = float(number)
    except ValueError:
        alpha = 0.0
    if kind != "dirichlet" or not 0 < alpha < 1e6:
        raise ExperimentError(
            f"there is no split {split!r}; there are iid and dirichlet:ALPHA, as dirichlet:0.5."
        )
    return alpha


def plan(
    settings: Settings,
    *,
    modes: Sequence[str],
    topologies: Sequence[str],
    weak_fractions: Sequence[float],
    seeds: Sequence[int],
    branch_dropout: Sequence[bool] = (True,),
) -> list[Cell]:
    """Every distinct cell once, seed by seed, so that a study can be looked at before it ends."""
    for what, chosen, known in (("mode", modes, MODES), ("topology", topologies, TOPOLOGIES)):
        for one in chosen:
            if one not in known:
                raise ExperimentError(f"there is no {what} {one!r}; there are {', '.join(known)}.")
    for fraction in weak_fractions:
        if not 0 < fraction < 1:
            raise ExperimentError(
                f"the weak device cannot hold {fraction:g} of the data: take more than 0 and "
                "less than 1, as 0.05 is."
            )
    cells: dict[Cell, None] = {}
    for seed, fraction, mode, topology in product(seeds, weak_fractions, modes, topologies):
        cell = Cell(
            settings=settings,
            mode=mode,
            topology=topology,
            devices=DEVICES,
            weak_fraction=fraction,
            seed=seed,
        )
        cells |= dict.fromkeys(_distinct(cell, branch_dropout))
    if not cells:
        raise ExperimentError("nothing is planned: give a mode, a topology, a fraction and a seed.")
    return list(cells)


def _distinct(cell: Cell, branch_dropout: Sequence[bool]) -> list[Cell]:
    """What has to be run for one point of a figure."""
    if cell.mode == "isolated":
        return [
            replace(cell, devices=(WEAK,), topology=ANY),
            replace(cell, devices=(POWERFUL,)),
        ]
    if cell.mode == "homogeneous":
        return [replace(cell, topology=ANY)]
    if cell.topology == "cascading":
        return [replace(cell, branch_dropout=on) for on in branch_dropout]
    return [cell]
