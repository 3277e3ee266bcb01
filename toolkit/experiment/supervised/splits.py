"""Divides a data set between devices into disjoint parts, IID or not; a seed decides the parts.

Dirichlet: of every class c the K devices hold shares p_c ~ Dir(α·K·fractions). A small α gives
each device few classes, a large α gives all devices the same mixture. Examples above a device's
fraction are then moved to other devices, so that each holds exactly its fraction of all examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from firmware_sim.bundle.target import Target
from firmware_sim.tensor_spec import Array
from toolkit.errors import ExperimentError
from toolkit.experiment.supervised.cell import parse_split

Indices = npt.NDArray[np.int64]
TRAINING = 0.8  # of a device's own examples; the others are for validation


@dataclass(frozen=True, eq=False)
class Part:
    """The indices of a device's examples for training and for validation."""

    training: Indices
    validation: Indices


def divide(labels: Array, fractions: Mapping[str, float], split: str, seed: int) -> dict[str, Part]:
    """Returns the part of each device; together they are the whole data set."""
    alpha = parse_split(split)
    sizes = dict(zip(fractions, _sizes(len(labels), list(fractions.values())), strict=True))
    for device, size in sizes.items():
        if size < 2:
            raise ExperimentError(
                f"the {device} device would hold {size} of {len(labels)} examples, and it needs at "
                "least 2: one to train on and one to validate with."
            )
    rng = np.random.default_rng(seed)
    if alpha is None:
        order = rng.permutation(len(labels))
        held = np.split(order, np.cumsum(list(sizes.values()))[:-1])
    else:
        held = _dirichlet(labels, list(sizes.values()), alpha, rng)
    return {device: _part(own, rng) for device, own in zip(sizes, held, strict=True)}


def check_split(split: str, target: Target) -> None:
    """Raises an ExperimentError if examples with such targets cannot be divided so."""
    if parse_split(split) is not None and target.kind != "class":
        raise ExperimentError(
            f"the split {split} divides classes, and these examples have none; take iid."
        )


def _sizes(count: int, fractions: Sequence[float]) -> list[int]:
    """Returns the number of examples of each device; the sum is `count`."""
    if not np.isclose(sum(fractions), 1.0):
        raise ValueError(f"the fractions {fractions} do not add up to 1")
    ends = [round(count * end) for end in np.cumsum(fractions)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _dirichlet(
    labels: Array, sizes: Sequence[int], alpha: float, rng: np.random.Generator
) -> list[Indices]:
    fractions = np.array(sizes) / len(labels)
    drawn: list[list[Indices]] = [[] for _ in sizes]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(alpha * len(sizes) * fractions)
        ends = np.round(np.cumsum(shares) * len(members)).astype(int)[:-1]
        for own, more in zip(drawn, np.split(members, ends), strict=True):
            own.append(more)
    held = [rng.permutation(np.concatenate(own)) for own in drawn]
    # Devices with too many examples give the surplus to those with too few.
    surplus = np.concatenate([own[size:] for own, size in zip(held, sizes, strict=True)])
    held = [own[:size] for own, size in zip(held, sizes, strict=True)]
    missing = [size - len(own) for own, size in zip(held, sizes, strict=True)]
    received = np.split(surplus, np.cumsum(missing)[:-1])
    return [np.concatenate(pair) for pair in zip(held, received, strict=True)]


def _part(own: Indices, rng: np.random.Generator) -> Part:
    order = rng.permutation(own)
    cut = min(max(1, round(TRAINING * len(own))), len(own) - 1)
    return Part(order[:cut], order[cut:])
