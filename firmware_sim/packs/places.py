"""Where packs are below a state folder, and which of them is in use; writes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from firmware_sim.bundle.reader import file_digest
from firmware_sim.errors import PackError
from firmware_sim.packs.format import AGGREGATOR_KEY, BUNDLE, CREDENTIALS, INDEX, Index, parse_index
from firmware_sim.packs.trial import read_trial

PACKS = "packs"  # the folder below a state folder


@dataclass(frozen=True)
class Installed:
    """A pack that is installed on this device; `base` brought the credentials."""

    folder: Path
    index: Index
    base: Installed | None = None  # itself, if None

    @property
    def bundle(self) -> Path:
        return self.folder / BUNDLE

    @property
    def owner(self) -> Index:
        """The index that says which device this is, and how it reaches its fleet."""
        return (self.base or self).index

    @property
    def arguments(self) -> tuple[str, ...]:
        """For the device's command line; those of the newer pack come last, and so count."""
        return (*self.base.arguments, *self.index.arguments) if self.base else self.index.arguments

    def credential(self, name: str) -> Path:
        return (self.base or self).folder / CREDENTIALS / name

    @property
    def aggregator_key(self) -> Path | None:
        """The file with the aggregator's public key; packs of earlier versions have none."""
        has_one = f"{CREDENTIALS}/{AGGREGATOR_KEY}" in self.owner.files
        return self.credential(AGGREGATOR_KEY) if has_one else None


def model_folder(index: Index) -> str:
    """Returns the name of the folder with the checkpoint, which belongs to one model."""
    return f"model-{index.model[:16]}"


def read_installed(folder: Path, *, on_trial: bool = False) -> Installed | None:
    """Returns the pack in use below a folder of packs, or None; writes nothing.

    Raises `PackError` if a file of it is not what the signed index says.
    """
    version = in_use(folder, on_trial=on_trial)
    if not version:
        return None
    installed = read_version(folder, version)
    if not installed.index.is_for_everyone:
        return installed
    return Installed(installed.folder, installed.index, read_version(folder, base_version(folder)))


def read_version(folder: Path, version: int) -> Installed:
    place = folder / str(version)
    try:
        index = parse_index((place / INDEX).read_bytes())
        for name, entry in index.files.items():
            if file_digest(place / name) != entry.sha256:
                raise PackError(f"{place / name} is damaged; install its pack again.")
    except OSError as error:
        where = error.filename or place
        raise PackError(f"{where} cannot be read ({error.strerror}).") from None
    return Installed(place, index)


def in_use(folder: Path, *, on_trial: bool) -> int:
    """Returns the highest version, without the one on trial unless this process tries it; or 0."""
    found = versions(folder)
    trial = read_trial(folder, max(found, default=0))
    if trial is None or on_trial:
        return max(found, default=0)
    base = base_version(folder)
    return max((v for v in found if v != trial.version or v == base), default=0)


def base_version(folder: Path) -> int:
    """Returns the version of the pack that brought credentials, or 0."""
    with_them = (v for v in versions(folder) if (folder / str(v) / CREDENTIALS).is_dir())
    return max(with_them, default=0)


def versions(folder: Path) -> list[int]:
    names = (path.name for path in folder.iterdir())
    return [int(name) for name in names if re.fullmatch(r"[1-9][0-9]{0,15}", name)]
