"""The packs of a device: the one in use, and how another takes its place.

They are in `STATE/packs/<version>/`. A new one is unpacked beside them and renamed in one step, so
that one is complete at any moment; the highest version is in use.

The trusted key is the one that the user gives, else that of the first pack ever installed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.durable import claim, sync_path, write_file
from firmware_sim.bundle.reader import file_digest
from firmware_sim.errors import PackError
from firmware_sim.packs.format import (
    AGGREGATOR_KEY,
    BUNDLE,
    CREDENTIALS,
    INDEX,
    Index,
    key_text,
    parse_index,
    read_key,
    read_signed,
    unpack,
)

PACKS = "packs"  # the folder below a state folder
_TRUSTED = "trusted.key"
_DRAFT = ".new-"


@dataclass(frozen=True)
class Installed:
    """A pack that is installed on this device."""

    folder: Path
    index: Index

    @property
    def bundle(self) -> Path:
        return self.folder / BUNDLE

    def credential(self, name: str) -> Path:
        return self.folder / CREDENTIALS / name

    @property
    def aggregator_key(self) -> Path | None:
        """The file with the aggregator's public key; packs of earlier versions have none."""
        has_one = f"{CREDENTIALS}/{AGGREGATOR_KEY}" in self.index.files
        return self.credential(AGGREGATOR_KEY) if has_one else None


class Packs:
    """The packs in a device's state folder, which is locked until `close`."""

    def __init__(self, state: Path, *, trusted: bytes | None = None) -> None:
        self._folder = state / PACKS
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = claim(self._folder)
        except OSError as error:
            raise PackError(f"{self._folder} cannot be written ({error.strerror}).") from None
        if lock is None:
            raise PackError(f"another device is using {state}.")
        self._lock = lock
        kept = self._folder / _TRUSTED
        self._kept = read_key(kept) if kept.exists() else None
        self._trusted = trusted or self._kept

    def close(self) -> None:
        self._lock.close()

    @property
    def version(self) -> int:
        """The highest version that was ever installed here, or 0."""
        return max(_versions(self._folder), default=0)

    def current(self) -> Installed | None:
        """Returns the pack in use; compares its files with its index, since memory cards decay."""
        return read_installed(self._folder)

    def install(self, pack: Path, check: Callable[[Index], None] = lambda index: None) -> None:
        """Puts the pack into use, or raises `PackError` and changes nothing.

        `check` may raise as well, after it has read the signed index.
        """
        try:
            with pack.open("rb") as file:
                key, text = read_signed(file, pack, self._trusted)
                index = parse_index(text)
                if self._is_here(index, text, pack):
                    return
                check(index)
                draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._folder))  # mode 0700
                unpack(file, index, text, pack, draft)
            if key != self._kept:  # from now on the only trusted key, unless the user gives another
                write_file(self._folder / _TRUSTED, key_text(key).encode())
                self._kept = self._trusted = key
            self._take_place(draft, index.version)
        except OSError as error:
            where = error.filename or pack
            raise PackError(f"{where} cannot be read or written ({error.strerror}).") from None
        finally:
            for left in self._folder.glob(f"{_DRAFT}*"):  # also those that a kill left behind
                shutil.rmtree(left, ignore_errors=True)

    def _is_here(self, index: Index, text: bytes, pack: Path) -> bool:
        """Whether this pack is in use and undamaged; raises if it may not be installed."""
        version = self.version
        if not version:
            return False
        if index.version < version:
            raise PackError(
                f"{pack} has version {index.version}, and version {version} is installed; "
                "an older one is never taken."
            )
        try:
            kept = (self._folder / str(version) / INDEX).read_bytes()
            mine = parse_index(kept)
        except (PackError, OSError):  # the installed pack is damaged, so it is replaced
            return False
        if index.version == version and text != kept:
            raise PackError(f"{pack} is another pack with the installed one's version {version}.")
        if (index.fleet, index.device) != (mine.fleet, mine.device):
            raise PackError(
                f"{pack} is for device {index.device!r} of fleet {index.fleet!r}, and this is "
                f"{mine.device!r} of {mine.fleet!r}."
            )
        try:
            return index.version == version and self.current() is not None
        except PackError:
            return False

    def _take_place(self, draft: Path, version: int) -> None:
        place = self._folder / str(version)
        if place.exists():  # the same one, damaged
            place.rename(self._folder / f"{_DRAFT}{version}")
        draft.rename(place)
        sync_path(self._folder)
        for older in _versions(self._folder):
            if older < version:
                shutil.rmtree(self._folder / str(older), ignore_errors=True)


def read_installed(folder: Path) -> Installed | None:
    """Returns the pack in use below a folder of packs, or None; writes nothing.

    Raises `PackError` if a file of it is not what the signed index says.
    """
    if not (version := max(_versions(folder), default=0)):
        return None
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


def _versions(folder: Path) -> list[int]:
    names = (path.name for path in folder.iterdir())
    return [int(name) for name in names if re.fullmatch(r"[1-9][0-9]{0,15}", name)]
