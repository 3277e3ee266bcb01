"""`folder:DIR`: pictures and WAV files that appear in a folder.

The label of a file is the name of the sub-folder that it is in; a file that is in none has no
label. A file is read once it has stopped growing, and never again while it stays as it is. One that
a kill has left half read is read again, and its examples have the same keys as before.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.durable import make_folder, write_file
from firmware_sim.errors import SourceError
from firmware_sim.sources.decoding.pictures import SUFFIXES, BadPicture, read_picture
from firmware_sim.sources.decoding.sound import BadSound, read_sound
from firmware_sim.sources.framing import Framing
from firmware_sim.sources.labels import NoLabel
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import FolderSettings, read_settings
from firmware_sim.sources.source import LateLabel, Malformed, Observation
from profiles.text import printable

LOOK_S = 0.5  # between two looks at the folder
QUIET_S = 2.0  # a file that was not changed for so long is complete
LARGEST_PICTURE = 64 * 2**20  # bytes
SEEN_FILE = "seen"
_DIGEST = 8  # bytes that a file is remembered by


@dataclass(frozen=True, order=True)
class Found:
    """A file as a look at the folder shows it; older ones come first."""

    modified_ns: int
    label: str  # name of the sub-folder
    name: str
    size: int

    @property
    def digest(self) -> bytes:
        text = "\0".join((self.label, self.name, str(self.size), str(self.modified_ns)))
        return hashlib.sha256(os.fsencode(text)).digest()[:_DIGEST]

    def key(self, number: int) -> str:
        """Returns the key of an example of this file: of its window with this number."""
        return f"{self.digest.hex()}/{number}"


def open_folder(place: str, request: Request) -> FolderSource:
    """Opens what follows `folder:`."""
    return FolderSource(Path(place), read_settings(FolderSettings, request.settings), request)


class FolderSource:
    """Looks at a folder and its sub-folders again and again."""

    def __init__(self, folder: Path, settings: FolderSettings, request: Request) -> None:
        if not folder.is_dir():
            raise SourceError(f"there is no folder {folder} to take pictures or sounds from.")
        self._folder = folder
        self._settings = settings
        self._request = request
        self._framing = Framing(settings, request, 1 if len(request.x.shape) == 1 else None)
        self._closing = threading.Event()
        self._memory = None if request.memory is None else request.memory / SEEN_FILE
        self._seen = read_seen(self._memory) if self._memory else set()
        self._growing: set[Found] = set()  # of the last look

    def events(self) -> Iterator[Observation | LateLabel | Malformed | None]:
        self._number_sub_folders()
        while not self._closing.is_set():
            for found in self._complete():
                said = time.monotonic()
                for event in self._read(found):
                    yield event
                    said = time.monotonic()
                if time.monotonic() - said > LOOK_S:
                    yield None
                self._remember(found)
                if self._closing.is_set():
                    return
            yield None
            self._closing.wait(LOOK_S)

    def close(self) -> None:
        self._closing.set()

    def _number_sub_folders(self) -> None:
        """Numbers the classes that are there by the order of their names."""
        for label in sorted({found.label for found in self._look()} - {""}):
            try:
                self._framing.label([label])
            except NoLabel:  # told with its first file
                return

    def _complete(self) -> list[Found]:
        """Returns the new files that no longer grow, and forgets those that are gone."""
        there = self._look()
        new = [found for found in there if found.digest not in self._seen]
        quiet = time.time_ns() - int(QUIET_S * 1e9)
        complete = [f for f in new if f in self._growing or f.modified_ns < quiet]
        self._growing = set(new)
        gone = self._seen - {found.digest for found in there}
        if len(gone) > len(self._seen) // 2 and len(gone) > 1000:
            self._seen -= gone
            if self._memory is not None:
                write_file(self._memory, *sorted(self._seen))
        return sorted(complete)

    def _look(self) -> list[Found]:
        found = []
        for label in ("", *self._sub_folders()):
            try:
                with os.scandir(self._folder / label) as entries:
                    for entry in entries:
                        if entry.name.startswith(".") or not entry.is_file():
                            continue
                        status = entry.stat()
                        found.append(Found(status.st_mtime_ns, label, entry.name, status.st_size))
            except OSError:  # taken away while it was looked at
                continue
        return found

    def _sub_folders(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
        except OSError:
            return []

    def _read(self, found: Found) -> Iterator[Observation | Malformed]:
        path = self._folder / found.label / found.name
        shown = printable(f"{found.label}/{found.name}".lstrip("/"), 100)
        try:
            match path.suffix.lower():
                case ".wav":
                    yield from self._sound(path, found)
                case suffix if suffix in SUFFIXES:
                    yield self._picture(path, found)
                case _:
                    yield Malformed(f"{shown} is neither a picture nor a WAV file.")
        except (BadPicture, BadSound, NoLabel) as error:
            yield Malformed(f"{shown}: {error}")
        except OSError as error:
            yield Malformed(f"{shown} cannot be read ({error.strerror}).")

    def _picture(self, path: Path, found: Found) -> Observation:
        if found.size > LARGEST_PICTURE:
            raise BadPicture(f"a picture has more than {LARGEST_PICTURE} bytes.")
        with path.open("rb") as file:
            data = file.read(LARGEST_PICTURE)
        label = self._framing.target([found.label or None])
        return Observation(read_picture(data, self._request.x), label, found.key(0))

    def _sound(self, path: Path, found: Found) -> Iterator[Observation | Malformed]:
        """Yields the windows of a file; none spans two files."""
        label = self._framing.label([found.label or None])
        windows = self._framing.windows()
        made = 0
        with path.open("rb") as file:
            for block in read_sound(
                file, channels=self._framing.channels, rate=self._settings.rate
            ):
                for sample in block:
                    window = windows.add(sample, label)
                    if window is not None:
                        yield self._framing.observation(window, found.key(made))
                        made += 1
        if not made:
            raise BadSound(f"a WAV file has fewer than the {self._framing.window} samples.")

    def _remember(self, found: Found) -> None:
        self._seen.add(found.digest)
        if self._memory is not None:
            make_folder(self._memory.parent)
            with self._memory.open("ab") as file:
                # A power cut may have left a part of a digest, which would shift all others.
                file.truncate(file.tell() // _DIGEST * _DIGEST)
                file.write(found.digest)


def read_seen(file: Path) -> set[bytes]:
    """Returns what a state remembers of files; one that a power cut left out is read again."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise SourceError(f"{file} cannot be read ({error.strerror}).") from None
    whole = len(data) // _DIGEST * _DIGEST
    return {data[start : start + _DIGEST] for start in range(0, whole, _DIGEST)}
