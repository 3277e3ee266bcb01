"""A user's own two networks as the branches of a study, and whether they fit his data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from broker.aggregator.slice_file import read_slice
from firmware_sim.bundle.target import Target
from firmware_sim.errors import TaskError
from firmware_sim.tasks.labelled import Examples, check_examples
from firmware_sim.tensor_spec import TensorSpec
from toolkit.branch.branch import Branch, sharing_everything
from toolkit.branch.user_model import load_branch
from toolkit.errors import ExperimentError
from toolkit.export.onnx.slice import build_slice
from toolkit.zoo.pair import Build, topologies


def own_branches(weak: str, strong: str, *, alone: bool = False) -> dict[tuple[str, str], Build]:
    """Returns how to build each branch of a user's pair, by topology and branch.

    In share-first the pair shares the layers that both have; they may have none if devices learn
    `alone`.
    """

    def whole(spec: str) -> Branch:
        return sharing_everything(load_branch(spec))

    def share_first(spec: str) -> Branch:
        branch = whole(spec)
        common = common_layers(load_branch(weak), load_branch(strong))
        if not common and not alone:
            raise ExperimentError(
                f"{weak} and {strong} have no layer in common, by name and shape; give the layers "
                "that they begin with the same names."
            )
        return replace(branch, shared_layers=common) if common else branch

    return {
        **topologies(partial(whole, weak), partial(whole, strong)),
        ("share-first", "lightweight"): partial(share_first, weak),
        ("share-first", "complex"): partial(share_first, strong),
    }


def common_layers(weak: Branch, strong: Branch) -> tuple[str, ...]:
    """Returns the layers whose weights have the same names, shapes and roles in both networks."""
    ours, theirs = (_fingerprints(branch) for branch in (weak, strong))

    def agrees(layer: str) -> bool:
        own = [_of_layer(layer, found) for found in (ours, theirs)]
        return bool(own[0]) and own[0] == own[1]

    return tuple(name for name in sharing_everything(weak).shared_layers if agrees(name))


def fitted(branch: Branch, examples: Examples) -> tuple[Target, Examples]:
    """Returns what the network learns to answer, and the examples with targets in its type.

    Raises an ExperimentError if it cannot learn these examples.
    """
    if branch.target is None:
        raise ExperimentError(
            f"{branch.name} does not learn from examples; a supervised study needs networks that "
            "do."
        )
    x = TensorSpec(branch.input_shape, np.dtype(branch.input_dtype))
    try:
        return branch.target, check_examples("the file", examples, x, branch.target)
    except TaskError as error:
        raise ExperimentError(f"{branch.name} cannot learn these data: {error}") from None


def _fingerprints(branch: Branch) -> dict[str, str]:
    """Returns the fingerprints of all trainable tensors, by name."""
    slice_, _ = read_slice(build_slice(sharing_everything(branch)).SerializeToString())
    return {tensor.name: tensor.fingerprint for tensor in slice_.tensors}


def _of_layer(layer: str, fingerprints: dict[str, str]) -> dict[str, str]:
    return {n: f for n, f in fingerprints.items() if layer in n.split("/")[:-1]}
