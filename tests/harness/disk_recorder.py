"""Records everything that code does to the files below a folder.

The hooks are the few calls that order or name things (fsync, rename, link, unlink, mkdir). Before
and after each of them the whole folder is read and compared with what is known: so every write is
seen whatever made it, and a change of names that no hook saw is an error.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_CUTS = (1, 15, 16)  # bytes after which a write may be cut off, besides its half and end


@dataclass(frozen=True)
class Write:
    """Bytes that one file got; `old` is what stood there, shorter if the file became longer."""

    file: int
    offset: int
    old: bytes
    new: bytes

    def variants(self) -> list[tuple[int, bytes] | None]:
        """Offset and bytes that may have reached the disk, or None; the whole write comes first."""
        size, extends = len(self.new), len(self.old) < len(self.new)
        cuts = sorted({c for c in (*_CUTS, size // 2, size - 1) if 0 < c < size})
        found: list[tuple[int, bytes] | None] = [(self.offset, self.new), None]
        for cut in cuts:
            found.append((self.offset, self.new[:cut]))
            if extends:  # longer, but its pages came in another order, or never
                found.append((self.offset, self.new[:cut] + bytes(size - cut)))
                found.append((self.offset, bytes(cut) + self.new[cut:]))
            else:
                found.append((self.offset + cut, self.new[cut:]))
        return [*found, (self.offset, bytes(size))] if extends else found


@dataclass(frozen=True)
class Shorten:
    """A file was cut to `size` bytes."""

    file: int
    size: int

    def variants(self) -> list[bool]:
        return [True, False]


@dataclass(frozen=True)
class SyncFile:
    file: int


@dataclass(frozen=True)
class SyncFolder:
    folder: str


@dataclass(frozen=True)
class Name:
    """A change of one folder's names: `file` is None for a removed name, -1 for a folder."""

    path: str
    file: int | None
    gone: str = ""  # the name that it had before, if it was renamed

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)  # noqa: PTH120, a path below the watched folder


@dataclass(frozen=True)
class Note:
    """Something that the test wants to remember at this place: a promise that was made."""

    what: Any


Event = Write | Shorten | SyncFile | SyncFolder | Name | Note
FOLDER = -1


@dataclass
class Recorder:
    """What happened below `root`, in order."""

    root: Path
    events: list[Event] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)  # of files and folders
    _numbers: dict[str, int] = field(default_factory=dict)  # the system's, to see replaced files
    _contents: dict[int, bytes] = field(default_factory=dict)
    _hooked: bool = False
    begun: int = 0  # number of events that only say what was there before

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hooks into the calls of this process; what is there already counts as certain."""
        for path, file in self._look():
            self._meet(path, file)
        self._contents = {
            number: (self.root / path).read_bytes() if number != FOLDER else b""
            for path, number in self._names.items()
        }
        for path, number in list(self._names.items()):
            self.events.append(Name(path, number))
            if number != FOLDER:
                self.events += [Write(number, 0, b"", self._contents[number]), SyncFile(number)]
        self.events += [SyncFolder(folder) for folder in self._folders()]
        self.begun = len(self.events)
        for name in ("fsync", "replace", "rename", "unlink", "remove", "link", "mkdir", "rmdir"):
            monkeypatch.setattr(os, name, self._hook(name, getattr(os, name)))

    def note(self, what: Any) -> None:
        self._observe()
        self.events.append(Note(what))

    def _folders(self) -> list[str]:
        return ["", *(path for path, number in self._names.items() if number == FOLDER)]

    def _hook(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*args: Any, **more: Any) -> Any:
            if self._hooked:
                return call(*args, **more)
            self._hooked = True
            try:
                self._observe()
                done = call(*args, **more)
                self._happened(name, args)
                self._observe()
                return done
            finally:
                self._hooked = False

        return hooked

    def _happened(self, name: str, args: Sequence[Any]) -> None:
        if name == "fsync":
            target = Path(f"/proc/self/fd/{args[0]}").resolve()
            if (path := self._below(target)) is None:
                return
            if stat.S_ISDIR(os.fstat(args[0]).st_mode):
                self.events.append(SyncFolder(path))
            else:
                self.events.append(SyncFile(self._names[path]))
            return
        paths = [self._below(Path(arg)) for arg in args if isinstance(arg, str | Path)]
        if None in paths:
            return
        first, *second = [path for path in paths if path is not None]
        if name in ("replace", "rename"):
            number = self._names.pop(first)
            system = self._numbers.pop(first)
            assert number != FOLDER, "no store renames folders"
            assert os.path.dirname(first) == os.path.dirname(second[0])  # noqa: PTH120
            self._names[second[0]], self._numbers[second[0]] = number, system
            self.events.append(Name(second[0], number, gone=first))
        elif name == "link":
            self._names[second[0]] = self._names[first]
            self._numbers[second[0]] = self._numbers[first]
            self.events.append(Name(second[0], self._names[first]))
        elif name == "mkdir":
            self._names[first] = FOLDER
            self._numbers[first] = (self.root / first).stat().st_ino
            self.events.append(Name(first, FOLDER))
        else:
            del self._names[first], self._numbers[first]
            self.events.append(Name(first, None))

    def _below(self, path: Path) -> str | None:
        path = path if path.is_absolute() else Path.cwd() / path
        if path == self.root:
            return ""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else None

    def _look(self) -> list[tuple[str, os.stat_result]]:
        found = sorted(self.root.rglob("*"))
        return [(str(path.relative_to(self.root)), path.stat()) for path in found]

    def _meet(self, path: str, file: os.stat_result) -> int:
        number = FOLDER if stat.S_ISDIR(file.st_mode) else len(self._contents)
        self._names[path], self._numbers[path] = number, file.st_ino
        if number != FOLDER:
            self._contents[number] = b""
        return number

    def _observe(self) -> None:
        """Finds what was written since the last time."""
        there = dict(self._look())
        missed = self._names.keys() - there.keys()
        assert not missed, f"removed or renamed without a call that is recorded: {missed}"
        for path, file in there.items():
            if path not in self._names:
                assert file.st_nlink == 1 and not stat.S_ISDIR(file.st_mode), path
                self.events.append(Name(path, self._meet(path, file)))
            assert self._numbers[path] == file.st_ino, f"{path} was replaced, and not by a rename"
            number = self._names[path]
            if number != FOLDER:
                self._compare(number, (self.root / path).read_bytes())

    def _compare(self, number: int, now: bytes) -> None:
        before = self._contents[number]
        if len(now) < len(before):
            self.events.append(Shorten(number, len(now)))
            before = before[: len(now)]
        changed = [i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b]
        if before != now[: len(before)]:
            begin, end = changed[0], changed[-1] + 1
            self.events.append(Write(number, begin, before[begin:end], now[begin:end]))
        if len(now) > len(before):
            self.events.append(Write(number, len(before), b"", now[len(before) :]))
        self._contents[number] = now
