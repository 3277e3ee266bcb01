"""What is whole in a device's state folder, and going back to what is, when asked.

A device keeps one checkpoint: storage is scarce, and the fleet has its θ_shared. There is nothing
older to go back to, so a damaged checkpoint is put aside and the device starts from its bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from broker.durable import is_claimed, make_folder, sync_path
from firmware_sim.errors import CheckpointError, PackError
from firmware_sim.packs.places import PACKS, read_installed
from firmware_sim.training.checkpoint import FILE, claim_state, read_checkpoint

LOST = (
    "its own layers, the optimiser's state, the position in the data, and an update that was "
    "not answered yet"
)


@dataclass(frozen=True)
class Found:
    """One thing that a state folder keeps; `problem` is empty if it is whole."""

    path: Path
    about: str = ""
    problem: str = ""

    @property
    def line(self) -> str:
        return self.problem or f"{self.path}: whole; {self.about}"


def check_state(folder: Path) -> list[Found]:
    """Reads every checkpoint and the pack in use, and writes nothing."""
    found = [_read(path) for path in _checkpoints(folder)]
    if (folder / PACKS).is_dir():
        found += _read_pack(folder / PACKS)
    return found or [Found(folder, "empty, and a device starts from its bundle")]


def salvage_state(folder: Path) -> list[str]:
    """Puts damaged checkpoints aside; returns what was put where, and what is lost by it."""
    said = []
    for path in _checkpoints(folder):
        if problem := _read(path).problem:
            with claim_state(path.parent):
                aside = _put_aside(path)
            said += [problem, f"lost: {LOST}", f"kept aside: {aside}"]
    if said:
        return [*said, "the device starts from its bundle and takes θ_shared from the fleet"]
    return [f"{folder}: nothing to salvage; no checkpoint is damaged"]


def _checkpoints(folder: Path) -> Iterator[Path]:
    """Yields the checkpoint of the folder, and of each model that packs brought."""
    try:
        below = sorted(path for path in folder.iterdir() if path.name.startswith("model-"))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read ({error.strerror}).") from None
    for place in (folder, *below):
        if is_claimed(place):
            raise CheckpointError(f"another device is using {place}.")
        if (place / FILE).exists():
            yield place / FILE


def _read(path: Path) -> Found:
    try:
        fields = read_checkpoint(path).fields
    except CheckpointError as error:
        return Found(path, problem=str(error))
    where = f"round {fields['round']}, {fields['steps_done']} steps done"
    return Found(path, f"device {fields['device']}, run {fields['run']}, {where}")


def _read_pack(folder: Path) -> list[Found]:
    try:
        installed = read_installed(folder)
    except PackError as error:
        return [Found(folder, problem=str(error))]
    if installed is None:
        return []
    index = installed.index
    about = f"version {index.version} for device {index.device} of fleet {index.fleet}"
    return [Found(installed.folder, about)]


def _put_aside(path: Path) -> Path:
    aside = next(p for n in count(1) if not (p := path.with_name(f"damaged-{n}")).exists())
    try:
        make_folder(aside)
        path.rename(aside / path.name)
        for folder in (aside, path.parent):
            sync_path(folder)
    except OSError as error:
        raise CheckpointError(f"{path.parent} cannot be written ({error.strerror}).") from None
    return aside / path.name
