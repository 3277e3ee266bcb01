"""What a device takes along when a pack brings it another branch.

The shared layers come from the fleet. Its own layers go on where name and shape agree. The
optimiser's state goes on if all of it agrees: half of it would take steps of a wrong size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.log import Log
from broker.protocol.wire import below
from firmware_sim.errors import CheckpointError
from firmware_sim.tensor_spec import Array
from firmware_sim.training.checkpoint import FILE, read_checkpoint
from firmware_sim.training.runtime import Model

OPTIMIZER = "optimizer/"


def inherited(new: Mapping[str, Array], old: Mapping[str, Array]) -> dict[str, Array]:
    """Returns those tensors of the old state that fit the new one."""
    fits = {
        name: old[name]
        for name, value in new.items()
        if name in old and (old[name].shape, old[name].dtype) == (value.shape, value.dtype)
    }
    if all(name in fits for name in new if name.startswith(OPTIMIZER)):
        return fits
    return {name: value for name, value in fits.items() if not name.startswith(OPTIMIZER)}


def inherit(model: Model, before: Path, log: Log) -> None:
    """Gives the model what fits of the checkpoint in the folder `before`, if there is one."""
    if not (before / FILE).exists():
        return
    try:
        stored = read_checkpoint(before / FILE)
    except CheckpointError as error:
        log.event("nothing_inherited", reason=str(error))
        return
    new = model.call("get_state")
    taken = inherited(new, below("learner/model/", stored.tensors))
    model.call("set_state", **(new | taken))
    log.event("inherited", tensors=len(taken), of=len(new))
