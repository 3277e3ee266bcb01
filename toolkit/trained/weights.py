"""Reads the weights that a device has trained back into a branch.

TensorFlow is imported where it is needed and not above: `toolkit play` reads weights without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from broker.durable import read_sealed
from broker.errors import WireError
from broker.protocol.wire import below
from firmware_sim.bundle.manifest import BranchInput
from firmware_sim.bundle.reader import Bundle
from firmware_sim.tensor_spec import Array
from firmware_sim.training.checkpoint import FILE, Checkpoints
from toolkit.errors import ExportError, ModelError

if TYPE_CHECKING:
    from toolkit.branch.branch import Branch


@dataclass(frozen=True, eq=False)
class TrainedWeights:
    """What a device's checkpoint holds of its model, and when that was."""

    device: str
    run: str
    round: int
    steps_done: int  # of that round
    state: Mapping[str, Array]  # what `set_state` takes, optimiser slots included

    @property
    def source(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "run": self.run,
            "round": self.round,
            "steps_done": self.steps_done,
        }


def read_weights(bundle: Bundle, state: Path) -> TrainedWeights:
    """From the checkpoint of a device that trains this bundle's model."""
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
    return TrainedWeights(device, found.run, found.round, found.steps_done, tensors)


def _owner(path: Path) -> str:
    """The device of a checkpoint, or "" if it cannot be read: then loading raises the error."""
    try:
        return str(read_sealed(path, "checkpoint").fields.get("device"))
    except (OSError, WireError):
        return ""


def rebuild(bundle: Bundle, model: str | None) -> tuple[str | None, Branch]:
    """The zoo's task and branch by the name in the manifest, or the user's branch."""
    from toolkit import zoo
    from toolkit.branch.user_model import load_branch

    if model is not None:
        return None, load_branch(model)
    name = bundle.manifest.branch.name
    for task, kind, topology in zoo.names():
        if name.startswith(f"{task}-{kind}"):
            branch = zoo.build(task, kind, topology)
            if branch.name == name:
                return task, branch
    raise ModelError(
        f"the manifest of {bundle.folder} cannot tell how its branch {name!r} is built, which is "
        "not the zoo's; say --model FILE:function, as when it was exported."
    )


def put_weights(bundle: Bundle, branch: Branch, weights: TrainedWeights) -> None:
    """Sets every float tensor of the branch by name, if it is the bundle's branch."""
    from toolkit.autodiff.naming import named_variables

    takes = BranchInput(branch.input_shape, branch.input_dtype, branch.input_scale)
    stated = bundle.manifest.branch.input
    wanted = {name: tuple(value.shape) for name, value in branch.weights().items()}
    stored = {t.name: t.shape for t in bundle.manifest.tensors}
    trainable = {t.name for t in bundle.manifest.tensors if t.trainable}
    for name in sorted(wanted.keys() | trainable):
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
    variables = named_variables(branch.model)
    for name in wanted:
        variables[name].assign(weights.state[name])


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))
