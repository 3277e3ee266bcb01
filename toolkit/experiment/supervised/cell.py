"""Cells of the supervised study (the paper's section 4.3), and which of them there are.

Planning is pure. What the topology or branch dropout cannot change is planned once, however many
panels of a figure show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import (
    ANY,
    BATCH,
    DEVICES,
    MODES,
    POWERFUL,
    WEAK,
    Cell,
    Settings,
    check_known,
)

TASKS = ("digits", "cifar10", "npz")
TOPOLOGIES = ("share-first", "cascading")


@dataclass(frozen=True, kw_only=True)
class SupervisedSettings(Settings):
    """What all cells of a supervised study have in common."""

    examples_per_round: int = 2_000
    split: str = "iid"  # or dirichlet:ALPHA
    validate_on: int | None = None  # at most so many examples of a device's own; None: all
    test_every: int = 1  # rounds between two points of a test curve

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_split(self.split)

    @property
    def steps(self) -> int:
        """Mini-batches in a round."""
        return -(-self.examples_per_round // BATCH)


@dataclass(frozen=True, kw_only=True)
class SupervisedCell(Cell):
    """The weak device holds `weak_fraction` of the data."""

    goes_on: ClassVar[bool] = True

    settings: SupervisedSettings
    topology: str
    weak_fraction: float
    branch_dropout: bool = True  # only a cascade has it

    @property
    def name(self) -> str:
        dropout = "" if self.branch_dropout else "_no-branch-dropout"
        fraction = f"weak-{self.weak_fraction:g}"
        return f"{self.mode}_{self.topology}_{self.who}{dropout}_{fraction}_seed-{self.seed}"

    def branch(self, device: str) -> tuple[str, str]:
        """(branch, topology) of a device, as the zoo calls them.

        homogeneous: everybody shares all of the lightweight branch, which is what the lightweight
        branch of a cascade shares.
        """
        return self.kind(device), "cascading" if self.topology == ANY else self.topology

    def model_key(self, device: str) -> tuple[object, ...]:
        alike = replace(self.settings, rounds=1, test_every=1)  # these leave the model as it is
        return (alike, self.branch(device), self.branch_dropout)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> SupervisedCell:
        settings = SupervisedSettings(**found["settings"])
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
    settings: SupervisedSettings,
    *,
    modes: Sequence[str],
    topologies: Sequence[str],
    weak_fractions: Sequence[float],
    seeds: Sequence[int],
    branch_dropout: Sequence[bool] = (True,),
) -> list[SupervisedCell]:
    """Every distinct cell once, seed by seed, so that a study can be looked at before it ends."""
    check_known("mode", modes, MODES)
    check_known("topology", topologies, TOPOLOGIES)
    for fraction in weak_fractions:
        if not 0 < fraction < 1:
            raise ExperimentError(
                f"the weak device cannot hold {fraction:g} of the data: take more than 0 and "
                "less than 1, as 0.05 is."
            )
    cells: dict[SupervisedCell, None] = {}
    for seed, fraction, mode, topology in product(seeds, weak_fractions, modes, topologies):
        cell = SupervisedCell(
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


def _distinct(cell: SupervisedCell, branch_dropout: Sequence[bool]) -> list[SupervisedCell]:
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
