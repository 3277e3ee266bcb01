"""Arms of a study: the ways of learning that are compared on one device.

    isolated        alone, with the device's plain network
    homogeneous     in a fleet in which all train the lightweight network
    share-first, cascading, two-loss
                    in a fleet in which each trains its own network, by topology
    isolated, cascading and so on
                    alone, with the network that the powerful device has in that topology

The control of the powerful device is its plain network in every topology: what a cascade does to
the network itself is part of what the topology costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import get_args

from toolkit.experiment.cell import ANY, HETEROGENEOUS, HOMOGENEOUS, ISOLATED, POWERFUL
from toolkit.experiment.figures.estimate import Scores
from toolkit.zoo import Topology

SHARE_FIRST, *CASCADES = TOPOLOGIES = get_args(Topology)


@total_ordering
@dataclass(frozen=True)
class Arm:
    """A setting, and the topology where it matters."""

    setting: str
    topology: str = ANY
    branch_dropout: bool = True  # False: a cascade of which it was taken away

    @classmethod
    def of(cls, setting: str, topology: str, device: str, branch_dropout: bool = True) -> Arm:
        """Returns the arm of a device in a cell."""
        cascade = setting == ISOLATED and device == POWERFUL and topology in CASCADES
        if setting == HETEROGENEOUS or cascade:
            return cls(setting, topology, branch_dropout)
        return cls(setting)

    @property
    def name(self) -> str:
        """The heading of its column, and its name in a legend."""
        network = self.topology if self.branch_dropout else f"{self.topology}, no branch dropout"
        if self.topology == ANY:
            return self.setting
        return network if self.setting == HETEROGENEOUS else f"{self.setting}, {network}"

    def __lt__(self, other: Arm) -> bool:
        return self._position() < other._position()

    def _position(self) -> tuple[int, int, bool]:
        """Both controls, the fleets by topology, then cascades alone."""
        group = 0 if self in CONTROLS else 1 if self.setting == HETEROGENEOUS else 2
        order = (*CONTROLS,).index(self) if group == 0 else TOPOLOGIES.index(self.topology)
        return group, order, not self.branch_dropout


CONTROLS = ALONE, ALIKE = Arm(ISOLATED), Arm(HOMOGENEOUS)


@dataclass(frozen=True)
class Comparison:
    """The scores of all arms on one device, in cells that differ in nothing else."""

    place: tuple[str, ...]  # the row's first entries, as ("weak", "5 %")
    scores: Mapping[Arm, Scores]
    digits: int = 1  # of a score behind the point


def arms_of(comparisons: Iterable[Comparison]) -> list[Arm]:
    """Returns every arm that was run, in the order of the columns."""
    return sorted({arm for comparison in comparisons for arm in comparison.scores})
