"""Cells of the supervised study (the paper's section 4.3), and the plan of a study.

Planning does no I/O. A cell that neither the topology nor branch dropout can change is planned
once, although several panels of the figure show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, get_args

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import (
    ANY,
    BATCH,
    DEVICES,
    HOMOGENEOUS,
    ISOLATED,
    LIGHTWEIGHT,
    POWERFUL,
    SETTINGS,
    WEAK,
    Cell,
    Merging,
    StudyOptions,
    check_known,
)
from toolkit.zoo import SupervisedTask, Topology

DIGITS, CIFAR10 = get_args(SupervisedTask)
NPZ = "npz"  # a user's data
TASKS = (DIGITS, CIFAR10, NPZ)
SHARE_FIRST, CASCADING, TWO_LOSS = TOPOLOGIES = get_args(Topology)


@dataclass(frozen=True, kw_only=True)
class SupervisedOptions(StudyOptions):
    """What all cells of a supervised study have in common."""

    examples_per_round: int = 2_000
    split: str = "iid"  # or dirichlet:ALPHA
    validate_on: int | None = None  # maximum number of validation examples; None: all
    test_every: int = 1  # rounds between two points of a test curve
    # A user's networks, as path/to/file.py:function; None: the task's own.
    weak_model: str | None = None
    strong_model: str | None = None
    merge: str = "samples"
    optimizer: str | None = None  # of the coordinator; None: changes are added

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_split(self.split)
        if (self.weak_model is None) != (self.strong_model is None):
            raise ExperimentError("give both networks, the weak and the strong one, or neither.")

    @property
    def steps(self) -> int:
        """The number of mini-batches in a round."""
        return -(-self.examples_per_round // BATCH)


@dataclass(frozen=True, kw_only=True)
class SupervisedCell(Cell):
    """The weak device holds `weak_fraction` of the examples, the powerful one the others."""

    resumes: ClassVar[bool] = True
    options_type: ClassVar[type[StudyOptions]] = SupervisedOptions

    options: SupervisedOptions
    topology: str
    weak_fraction: float
    branch_dropout: bool = True  # only cascading branches have it

    @property
    def name(self) -> str:
        dropout = "" if self.branch_dropout else "_no-branch-dropout"
        devices = f"{self.participants}{dropout}_weak-{self.weak_fraction:g}"
        return f"{self.setting}_{self.topology}_{devices}_seed-{self.seed}"

    @property
    def merging(self) -> Merging:
        options = self.options
        return Merging("sync", options.merge, options.rounds, options.optimizer)

    def zoo_topology(self) -> str:
        """The topology as the zoo calls it.

        In a homogeneous cell all layers of the lightweight branch are shared; these are the layers
        that the lightweight branch of a cascade shares.
        """
        return CASCADING if self.topology == ANY else self.topology

    def model_key(self, device: str) -> tuple[object, ...]:
        same_model = replace(self.options, rounds=1, test_every=1, merge="", optimizer=None)
        branch, topology = self.branch(device), self.zoo_topology()
        if branch == LIGHTWEIGHT and topology != SHARE_FIRST:
            return same_model, branch  # the same in all cascades: everything is shared
        return same_model, branch, topology, self.branch_dropout


def parse_split(split: str) -> float | None:
    """Returns α for `dirichlet:ALPHA`, and None for `iid`."""
    if split == "iid":
        return None
    distribution, _, number = split.partition(":")
    try:
        alpha = float(number)
    except ValueError:
        alpha = 0.0
    if distribution != "dirichlet" or not 0 < alpha < 1e6:
        raise ExperimentError(
            f"there is no split {split!r}; there are iid and dirichlet:ALPHA, as dirichlet:0.5."
        )
    return alpha


def check_fraction(fraction: float) -> None:
    """Raises an ExperimentError if the weak device cannot hold this part of the data."""
    if not 0 < fraction < 1:
        raise ExperimentError(
            f"the weak device cannot hold {fraction:g} of the data: take more than 0 and less than "
            "1, as 0.05 is."
        )


def plan(
    options: SupervisedOptions,
    *,
    settings: Sequence[str],
    topologies: Sequence[str],
    weak_fractions: Sequence[float],
    seeds: Sequence[int],
    branch_dropout: Sequence[bool] = (True,),
) -> list[SupervisedCell]:
    """Returns every distinct cell once, ordered by seed, so that early results can be drawn."""
    check_known("mode", settings, SETTINGS)  # the word of the option --modes
    check_known("topology", topologies, TOPOLOGIES)
    for fraction in weak_fractions:
        check_fraction(fraction)
    cells: dict[SupervisedCell, None] = {}
    for seed, fraction, setting, topology in product(seeds, weak_fractions, settings, topologies):
        cell = SupervisedCell(
            options=options,
            setting=setting,
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
    """Returns the cells that one point of the figure needs.

    What a powerful device loses or wins is measured against its own network alone, without a
    cascade. A cascade alone shows what the cascade itself does to it.
    """
    if cell.setting == ISOLATED:
        return [
            replace(cell, devices=(WEAK,), topology=ANY),
            replace(cell, devices=(POWERFUL,), topology=SHARE_FIRST),
            replace(cell, devices=(POWERFUL,)),
        ]
    if cell.setting == HOMOGENEOUS:
        return [replace(cell, topology=ANY)]
    if cell.topology == CASCADING:
        return [replace(cell, branch_dropout=on) for on in branch_dropout]
    return [cell]
