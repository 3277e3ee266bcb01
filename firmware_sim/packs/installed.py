"""The packs of a device: the one in use, and how another takes its place.

They are in `STATE/packs/<version>/`. A new one is unpacked beside them and renamed in one step, so
that one is complete at any moment; the highest version that is not on trial is in use.

A pack that was carried to the device brings credentials, and replaces all before it. One that came
over the broker has none: the last one with credentials stays below it, and is what it adds to.

The trusted key is the one that the user gives, else that of the first pack ever installed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from broker.durable import claim, sync_path, write_file
from firmware_sim.errors import PackError
from firmware_sim.packs.format import (
    INDEX,
    Index,
    key_text,
    parse_index,
    read_key,
    read_signed,
    unpack,
)
from firmware_sim.packs.places import (
    PACKS,
    Installed,
    base_version,
    in_use,
    model_folder,
    read_installed,
    read_version,
    versions,
)
from firmware_sim.packs.trial import (
    Failed,
    Trial,
    end_trial,
    read_failed,
    read_trial,
    write_failed,
    write_trial,
)

_TRUSTED = "trusted.key"
_DRAFT = ".new-"


class Packs:
    """The packs in a device's state folder, which is locked until `close`.

    `on_trial`: this process tries the pack that came last.
    """

    def __init__(
        self, state: Path, *, trusted: bytes | None = None, on_trial: bool = False
    ) -> None:
        self._folder = state / PACKS
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = claim(self._folder)
        except OSError as error:
            raise PackError(f"{self._folder} cannot be written ({error.strerror}).") from None
        if lock is None:
            raise PackError(f"another device is using {state}.")
        self._lock = lock
        self._on_trial = on_trial
        kept = self._folder / _TRUSTED
        self._kept = read_key(kept) if kept.exists() else None
        self._trusted = trusted or self._kept

    def close(self) -> None:
        self._lock.close()

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def version(self) -> int:
        """The highest version that is installed here, or 0."""
        return max(versions(self._folder), default=0)

    @property
    def failed(self) -> Failed:
        """The last version that was rolled back."""
        return read_failed(self._folder)

    @property
    def trial(self) -> Trial | None:
        return read_trial(self._folder, self.version)

    @property
    def on_trial(self) -> bool:
        return self._on_trial

    def current(self) -> Installed | None:
        """Returns the pack in use; compares its files with its index, since memory cards decay.

        One from the broker that is damaged gives way to the one before it.
        """
        try:
            return read_installed(self._folder, on_trial=self._on_trial)
        except PackError as error:
            damaged = in_use(self._folder, on_trial=self._on_trial)
            if not self._drop(damaged, str(error)):
                raise
            return self.current()

    def before_trial(self) -> Installed | None:
        """Returns the pack that was in use before the one on trial."""
        return read_installed(self._folder)

    def install(
        self,
        pack: Path,
        check: Callable[[Index], None] = lambda index: None,
        *,
        within: int | None = None,
    ) -> None:
        """Puts the pack into use, or raises `PackError` and changes nothing.

        `check` may raise as well, after it has read the signed index. With `within`, the pack came
        over the broker: it is on trial, and has so many seconds to finish a round.
        """
        try:
            with pack.open("rb") as file:
                key, text = read_signed(file, pack, self._trusted)
                index = parse_index(text)
                if within is not None:
                    self._check_offered(index, pack)
                elif self._is_here(index, text, pack):
                    return
                check(index)
                draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._folder))  # mode 0700
                unpack(file, index, text, pack, draft)
            if within is not None:  # first: a pack is never in its place without its trial
                write_trial(self._folder, Trial(index.version, within))
            elif key != self._kept:  # from now on the only trusted key, unless the user gives one
                write_file(self._folder / _TRUSTED, key_text(key).encode())
                self._kept = self._trusted = key
            self._take_place(draft, index.version, replaces=within is None)
        except OSError as error:
            where = error.filename or pack
            raise PackError(f"{where} cannot be read or written ({error.strerror}).") from None
        finally:
            for left in self._folder.glob(f"{_DRAFT}*"):  # also those that a kill left behind
                shutil.rmtree(left, ignore_errors=True)

    def start_trial(self) -> Trial | None:
        """Counts a start with the pack on trial; one that has had its chances is rolled back."""
        trial = self.trial
        if trial is None:
            return None
        if trial.version not in versions(self._folder):  # killed before it was in its place
            end_trial(self._folder)
            return None
        if trial.is_over or self.failed.version >= trial.version:
            self.roll_back(f"it has ended {trial.starts} times without finishing a round")
            return None
        write_trial(self._folder, Trial(trial.version, trial.within, trial.starts + 1))
        return trial

    def forgive_start(self) -> None:
        """Takes the count back: the user has stopped the device, or its fleet has finished."""
        if trial := self.trial:
            write_trial(self._folder, Trial(trial.version, trial.within, max(0, trial.starts - 1)))

    def confirm(self) -> None:
        """Ends the trial: the pack stays; those in between, and their models, are removed."""
        end_trial(self._folder)
        installed = read_installed(self._folder)
        if installed is None:
            return
        kept = {installed.folder, installed.base.folder if installed.base else installed.folder}
        for version in versions(self._folder):
            if (place := self._folder / str(version)) not in kept:
                shutil.rmtree(place, ignore_errors=True)
        for model in self._folder.parent.glob("model-*"):
            if model.name != model_folder(installed.index):
                shutil.rmtree(model, ignore_errors=True)

    def roll_back(self, why: str) -> None:
        """Ends the trial: the pack is removed, and that version is not taken again."""
        if trial := self.trial:
            self._drop(trial.version, why)
            end_trial(self._folder)

    def _drop(self, version: int, why: str) -> bool:
        """Removes a pack that came over the broker; returns False if this is none."""
        place = self._folder / str(version)
        if version == base_version(self._folder):
            return False
        if self.failed.version != version:  # else it was killed while it did this
            write_failed(self._folder, Failed(version, why))
        if place.exists():
            gone = self._folder / f"{_DRAFT}{version}"
            shutil.rmtree(gone, ignore_errors=True)
            place.rename(gone)
            sync_path(self._folder)
            shutil.rmtree(gone, ignore_errors=True)
        return True

    def _check_offered(self, index: Index, pack: Path) -> None:
        """Raises `PackError` unless a pack from the broker may go on trial here."""
        if not index.is_for_everyone:
            raise PackError(f"{pack} holds credentials, which do not travel over the broker.")
        installed = self.current()
        if installed is None or installed.owner.fleet != index.fleet:
            raise PackError(f"{pack} is for fleet {index.fleet!r}, and this device is not in it.")
        newest = max(self.version, self.failed.version)
        if index.version <= newest:
            raise _older(pack, index.version, newest)

    def _is_here(self, index: Index, text: bytes, pack: Path) -> bool:
        """Whether this pack is installed and undamaged; raises if it may not be installed."""
        if index.is_for_everyone:
            raise PackError(f"{pack} brings no credentials: give it to the fleet, toolkit rollout.")
        version = base_version(self._folder)
        if not version:
            return False
        try:
            kept = (self._folder / str(version) / INDEX).read_bytes()
            mine = parse_index(kept)
        except (PackError, OSError):  # the installed pack is damaged, so it is replaced
            if index.version < version:
                raise _older(pack, index.version, version) from None
            return False
        # What came over the broker since then is newer than the pack that it adds to.
        newest = self.version if text != kept else version
        if index.version < newest:
            raise _older(pack, index.version, newest)
        if index.version == newest and text != kept:
            raise PackError(f"{pack} is another pack with the installed one's version {newest}.")
        if (index.fleet, index.device) != (mine.fleet, mine.device):
            raise PackError(
                f"{pack} is for device {index.device!r} of fleet {index.fleet!r}, and this is "
                f"{mine.device!r} of {mine.fleet!r}."
            )
        try:
            return index.version == version and read_version(self._folder, version) is not None
        except PackError:
            return False

    def _take_place(self, draft: Path, version: int, *, replaces: bool) -> None:
        place = self._folder / str(version)
        if place.exists():  # the same one, damaged
            place.rename(self._folder / f"{_DRAFT}{version}")
        draft.rename(place)
        sync_path(self._folder)
        if not replaces:
            return
        for older in versions(self._folder):
            if older < version:
                shutil.rmtree(self._folder / str(older), ignore_errors=True)
        if (trial := self.trial) and trial.version <= version:
            end_trial(self._folder)


def _older(pack: Path, version: int, installed: int) -> PackError:
    return PackError(
        f"{pack} has version {version}, and version {installed} is installed; "
        "an older one is never taken."
    )
