"""The checkpoint of a device, from which it continues after a kill."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from broker.durable import claim, make_folder, read_sealed, write_sealed
from broker.errors import WireError
from broker.protocol.slice import Tensors
from broker.protocol.wire import Array, Envelope, below
from firmware_sim.errors import CheckpointError

FILE = "checkpoint.safetensors"
FORMAT = 2
_TEXTS, _NUMBERS = {"device", "bundle", "run", "residual_run"}, {"round", "steps_done"}  # fields
_LEARNER, _BASE, _OUTBOX, _RESIDUAL = "learner/", "base/", "outbox", "residual/"
_TRUSTED = "trusted/"


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """Progress: `steps_done` of round `round`, or a complete round with an update to be sent."""

    run: str
    round: int
    steps_done: int
    learner: dict[str, Array]
    base: Tensors = field(default_factory=dict)  # θ_shared that the round started from
    outbox: bytes = b""  # the encoded update, once the round is trained


@dataclass
class Residual:
    """The error of rounding in the updates of a run so far (`compression.py`); mutable."""

    run: str = ""
    tensors: Tensors = field(default_factory=dict)


@dataclass
class Trusted:
    """The θ_shared adopted last and found good, and the jumps to it and to those before.

    `firmware_sim.device.plausibility` judges by it, and a device with --guard returns to it.
    Checkpoints of earlier versions have none.
    """

    run: str = ""
    round: int = 0
    quality: float | None = None  # with it, on the held-out data, if that was measured
    jumps: dict[str, list[float]] = field(default_factory=dict)  # of each tensor, the newest last
    tensors: Tensors = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Returns all but the tensors, as JSON holds it."""
        return {name: value for name, value in vars(self).items() if name != "tensors"}


def claim_state(folder: Path) -> BinaryIO:
    """Returns the lock of a state folder; the folder is this process's until it is closed."""
    try:
        make_folder(folder)
        lock = claim(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written ({error.strerror}).") from None
    if lock is None:
        raise CheckpointError(f"another device is using {folder}.")
    return lock


class Checkpoints:
    """One device's state folder; `bundle` is the digest of the model that it belongs to."""

    def __init__(self, folder: Path, *, device: str, bundle: str) -> None:
        self.folder = folder
        self._path = folder / FILE
        self._owner = {"device": device, "bundle": bundle}
        try:
            make_folder(folder)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be written ({error.strerror}).") from None

    @cached_property
    def residual(self) -> Residual:
        """It is written with every checkpoint, and restored by `load`."""
        return Residual()

    @cached_property
    def trusted(self) -> Trusted:
        """It is written with every checkpoint, and restored by `load`."""
        return Trusted()

    def save(self, checkpoint: Checkpoint) -> None:
        fields = {
            "format": FORMAT,
            **self._owner,
            "run": checkpoint.run,
            "round": checkpoint.round,
            "steps_done": checkpoint.steps_done,
            "residual_run": self.residual.run,
            "trusted": self.trusted.fields(),
        }
        tensors: dict[str, Array] = {
            **{_LEARNER + name: value for name, value in checkpoint.learner.items()},
            **{_BASE + name: value for name, value in checkpoint.base.items()},
            **{_RESIDUAL + name: value for name, value in self.residual.tensors.items()},
            **{_TRUSTED + name: value for name, value in self.trusted.tensors.items()},
            _OUTBOX: np.frombuffer(checkpoint.outbox, np.uint8),
        }
        try:
            write_sealed(self._path, "checkpoint", fields, tensors)
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be written ({error.strerror}).") from None

    def load(self) -> Checkpoint | None:
        try:
            if not self._path.exists():
                return None
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be read ({error.strerror}).") from None
        stored = read_checkpoint(self._path)
        fields = stored.fields
        for what, mine in self._owner.items():
            if fields[what] != mine:
                raise CheckpointError(
                    f"{self._path} belongs to another {what}; give another --state."
                )
        self.residual.run = fields["residual_run"]
        # A copy: it outlives the checkpoint, whose tensors are views into one large block.
        kept = below(_RESIDUAL, stored.tensors)
        self.residual.tensors = {name: value.copy() for name, value in kept.items()}
        trusted = dict(fields.get("trusted", {}))
        if "accuracy" in trusted:  # as earlier versions call it
            trusted["quality"] = trusted.pop("accuracy")
        vars(self.trusted).update(trusted)
        good = below(_TRUSTED, stored.tensors)
        self.trusted.tensors = {name: value.copy() for name, value in good.items()}
        return Checkpoint(
            run=fields["run"],
            round=fields["round"],
            steps_done=fields["steps_done"],
            learner=below(_LEARNER, stored.tensors),
            base=below(_BASE, stored.tensors),
            outbox=stored.tensors[_OUTBOX].tobytes(),
        )


def read_checkpoint(path: Path) -> Envelope:
    """Returns what is stored, of any device; raises `CheckpointError` if it cannot be used."""
    try:
        stored = read_sealed(path, "checkpoint")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).") from None
    except WireError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    fields = stored.fields
    good = all(type(fields.get(name)) is str for name in _TEXTS) and all(
        type(fields.get(name)) is int and fields[name] >= 0 for name in _NUMBERS
    )
    if fields.get("format") != FORMAT or not good or _OUTBOX not in stored.tensors:
        raise CheckpointError(f"{path} was written by another version.")
    return stored
