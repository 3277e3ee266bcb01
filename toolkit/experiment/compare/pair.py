"""A user's two networks and data, checked before a comparison starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from broker.protocol.slice import json_digest
from toolkit.branch.branch import Branch, sharing_everything
from toolkit.branch.cascade import cascade
from toolkit.branch.counting import training_operations
from toolkit.branch.user_model import load_branch
from toolkit.experiment.cell import POWERFUL, WEAK
from toolkit.experiment.supervised.cell import NPZ, check_fraction
from toolkit.experiment.supervised.data import digest_of, read_task
from toolkit.experiment.supervised.own_networks import common_layers, fitted
from toolkit.experiment.supervised.splits import divide


@dataclass(frozen=True)
class ComparedPair:
    """What a comparison needs to know of the two networks and of the data."""

    weak: str  # path/to/file.py:function
    strong: str
    weak_shares_all: bool  # whether the function itself says that everything is shared
    common: tuple[str, ...]  # layers that both networks have
    share_common: bool  # whether the functions themselves say that these are shared, and no others
    examples: int  # to train with
    operations: tuple[int, int]  # of a training step for an example: weak, strong
    digest: str  # of both networks and the data

    @property
    def largest_step(self) -> int:
        """Operations of a training step of the cascade, for an example."""
        return sum(self.operations)


def check_pair(weak: str, strong: str, data: Path, *, weak_fraction: float) -> ComparedPair:
    """Returns what was found; raises a StemshareError if networks or data do not fit."""
    check_fraction(weak_fraction)
    light, full = load_branch(weak), load_branch(strong)
    read_task.cache_clear()  # it knows a file by its name alone
    examples = read_task(NPZ, data, own_networks=True)
    for branch in (light, full):
        _, examples = fitted(branch, examples)
    divide(examples.y_train, {WEAK: weak_fraction, POWERFUL: 1 - weak_fraction}, "iid", seed=0)
    cascade(sharing_everything(light), full)
    common = common_layers(light, full)
    return ComparedPair(
        weak=weak,
        strong=strong,
        weak_shares_all=not light.local_names,
        common=common,
        share_common=_share_alike(light, full) and _shares(light, common),
        examples=len(examples.x_train),
        operations=(training_operations(light), training_operations(full)),
        digest=json_digest([_description(light), _description(full), digest_of(examples)]),
    )


def _share_alike(light: Branch, full: Branch) -> bool:
    return {*light.shared_layers} == {*full.shared_layers}


def _shares(branch: Branch, layers: tuple[str, ...]) -> bool:
    """Whether the tensors that the branch shares are those of the layers."""
    if not layers:
        return False
    return replace(branch, shared_layers=layers).shared_names == branch.shared_names


def _description(branch: Branch) -> list[str]:
    """Everything that decides how a network learns, but for its initial weights."""
    made = branch.model.to_json()
    return [made, repr(branch.learning), branch.input_dtype, repr(branch.input_scale)]
