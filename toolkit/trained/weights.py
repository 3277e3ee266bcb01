"""Reads the weights that a device or a fleet has trained, and puts them into a branch.

TensorFlow is imported where it is needed and not above: `toolkit play` reads weights without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from broker.aggregator.start_values import read_start_values
from broker.durable import read_sealed
from broker.errors import SliceError, WireError
from broker.protocol.wire import below
from firmware_sim.bundle.manifest import BranchInput
from firmware_sim.bundle.reader import Bundle
from firmware_sim.normalisation import Normalisation, learnt_in
from firmware_sim.tensor_spec import Array
from firmware_sim.training.checkpoint import FILE, Checkpoints
from toolkit.errors import ExportError, ModelError

if TYPE_CHECKING:
    from toolkit.branch.branch import Branch
    from toolkit.branch.stored import StoredBranch


@dataclass(frozen=True, eq=False)
class TrainedWeights:
    """Tensors of the training state, or a part of them, and whose they are, in words."""

    origin: str
    state: Mapping[str, Array]
    normalisation: Normalisation | None  # of inputs, as the device has learnt it or the bundle says


def read_weights(bundle: Bundle, state: Path) -> TrainedWeights:
    """Returns the whole state in the checkpoint of a device that trains this bundle's model."""
    path = state / FILE
    if not path.is_file():
        raise ExportError(f"there is no checkpoint in {state}; a device's --state folder has one.")
    device = _owner(path)
    found = Checkpoints(state, device=device, bundle=bundle.model_digest).load()
    if found is None:
        raise ExportError(f"the checkpoint in {state} has gone; try again.")
    tensors = below("model/", found.learner)
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise ExportError(f"{path} holds a tensor {name!r} that is not finite.")
    steps = f" and {found.steps_done} steps" if found.steps_done else ""
    normalisation = learnt_in(below("task/", found.learner)) or bundle.manifest.normalisation
    return TrainedWeights(f"{device} after {found.round} rounds{steps}", tensors, normalisation)


def read_trained(bundle: Bundle, state: Path | None, shared: Path | None) -> TrainedWeights:
    """Returns a device's weights, with the shared ones of a fleet in their place if given.

    With neither it is nothing: the weights that the bundle was exported with.
    """
    device = read_weights(bundle, state) if state is not None else None
    if shared is None:
        return device or TrainedWeights("the export", {}, bundle.manifest.normalisation)
    values = read_start_values(shared)
    tensors = values.of(bundle.manifest.shared)
    if missing := [t.name for t in bundle.manifest.shared.tensors if t.name not in tensors]:
        raise SliceError(f"{values.origin} lacks tensor {missing[0]!r}, which the bundle shares.")
    if device is None:
        return TrainedWeights(values.origin, tensors, bundle.manifest.normalisation)
    origin = f"{device.origin}, with {values.origin}"
    return TrainedWeights(origin, {**device.state, **tensors}, device.normalisation)


def _owner(path: Path) -> str:
    """The device of a checkpoint, or "" if it cannot be read: then loading raises the error."""
    try:
        return str(read_sealed(path, "checkpoint").fields.get("device"))
    except (OSError, WireError):
        return ""


def trained_branch(bundle: Bundle, model: str | None, weights: TrainedWeights) -> Branch:
    """Returns the bundle's branch with these weights.

    It is made from the bundle, or by the user's function `model`, for branches with code of their
    own. Without a device's state the fleet must know every tensor that is trained.
    """
    stored = _rebuild(bundle, model)
    ours = {tensor.name for tensor in bundle.manifest.tensors} & stored.variables.keys()
    if local := sorted(ours - weights.state.keys()):
        raise ExportError(
            f"{bundle.folder} keeps {local[0]!r} on the device, and {weights.origin} does not have "
            "it; give --state with the folder of a device's checkpoint."
        )
    stored.put({name: weights.state[name] for name in sorted(ours)})
    return stored.branch


def _rebuild(bundle: Bundle, model: str | None) -> StoredBranch:
    from toolkit.autodiff.naming import named_variables
    from toolkit.branch.stored import StoredBranch, read_branch
    from toolkit.branch.user_model import load_branch

    if model is not None:
        branch = load_branch(model)
        _check(bundle, branch)
        return StoredBranch(branch, named_variables(branch.model))
    if bundle.branch is None:
        raise ModelError(
            f"{bundle.folder} does not hold its branch, as where layers have code of their own; "
            "give --model FILE.py:function, as when it was exported."
        )
    return read_branch(bundle.branch)


def _check(bundle: Bundle, branch: Branch) -> None:
    """Raises `ModelError` unless the branch has the bundle's tensors, and takes its input."""
    from toolkit.export.prefix import frozen_digest

    frozen = bundle.manifest.frozen
    takes = BranchInput(branch.input_shape, branch.input_dtype, branch.input_scale)
    stated = bundle.manifest.branch.input
    wanted = {name: tuple(value.shape) for name, value in branch.weights().items()}
    stored = {t.name: t.shape for t in bundle.manifest.tensors}
    stored |= frozen.tensors if frozen else {}
    trainable = {t.name for t in bundle.manifest.tensors if t.trainable}
    for name in sorted(wanted.keys() & stored.keys() | trainable):
        here, there = wanted.get(name), stored.get(name)
        if here != there:
            raise ModelError(
                f"the branch {branch.name!r} is not the one of {bundle.folder}: tensor {name!r} "
                f"is {_shape(here)} here and {_shape(there)} in the bundle."
            )
    if takes != stated:
        raise ModelError(
            f"the branch {branch.name!r} is not the one of {bundle.folder}: "
            f"it takes {takes}, and the bundle {stated}."
        )
    own = branch.weights()
    if frozen and frozen_digest({name: own[name] for name in frozen.tensors}) != frozen.sha256:
        raise ModelError(
            f"the branch {branch.name!r} is not the one of {bundle.folder}: its frozen layers have "
            "other weights; let its function load or seed them as when it was exported."
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))
