"""Every state of the disk that a power cut could leave, from what a program really wrote.

The model of the disk, as POSIX allows it and no kinder:
- what was written to a file is certain after an fsync of that file; before that, each write is
  there, is not there, is cut off somewhere, or has made the file longer and left zeros;
- a name (created, renamed, linked, removed) is certain after an fsync of its folder; before that,
  each change has happened or has not, in any combination;
- the two are independent of each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.harness.disk_recorder import (
    FOLDER,
    Event,
    Name,
    Note,
    Shorten,
    SyncFile,
    SyncFolder,
    Write,
)

T = TypeVar("T")
Files = dict[str, bytes]  # by their path below the watched folder; folders end in a slash


@dataclass
class Disk:
    """What is certain after a number of events, and what is not."""

    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    writes: list[Write | Shorten] = field(default_factory=list)  # not synced yet
    changes: list[Name] = field(default_factory=list)  # not synced yet
    notes: list[Any] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Write() | Shorten():
                self.contents.setdefault(event.file, b"")
                self.writes.append(event)
            case SyncFile(number):
                for write in [w for w in self.writes if w.file == number]:
                    self._write(self.contents, write, write.variants()[0])
                    self.writes.remove(write)
            case Name(_, number):
                if number is not None and number != FOLDER:
                    self.contents.setdefault(number, b"")
                self.changes.append(event)
            case SyncFolder(folder):
                for change in [c for c in self.changes if c.folder == folder]:
                    self._rename(self.names, change)
                    self.changes.remove(change)
            case Note(what):
                self.notes.append(what)

    def states(self) -> Iterator[Files]:
        """Yields every state that a power cut now could leave, with at most one write torn.

        The complete state comes first.
        """
        seen = set()
        subsets = chain.from_iterable(
            combinations(self.changes, count) for count in range(len(self.changes), -1, -1)
        )
        for chosen in subsets:
            names = dict(self.names)
            for change in chosen:
                self._rename(names, change)
            visible = set(names.values())
            pending = [write for write in self.writes if write.file in visible]
            for variants in _one_torn(pending):
                contents = dict(self.contents)
                for write, variant in zip(pending, variants, strict=True):
                    self._write(contents, write, variant)
                files = self._files(names, contents)
                key = tuple(sorted(files.items()))
                if key not in seen:
                    seen.add(key)
                    yield files

    def one_state(self, choose: Callable[[int], int]) -> Files:
        """One of the states; `choose(n)` returns a number below n."""
        names, contents = dict(self.names), dict(self.contents)
        for change in self.changes:
            if choose(2) == 0:
                self._rename(names, change)
        for write in self.writes:
            variants = write.variants()
            self._write(contents, write, variants[choose(len(variants))])
        return self._files(names, contents)

    @staticmethod
    def _files(names: dict[str, int], contents: dict[int, bytes]) -> Files:
        """Folders end in a slash; what is in a folder that is not there is not there either."""
        folders = {path for path, number in names.items() if number == FOLDER}

        def is_reached(path: str) -> bool:
            above = path.rpartition("/")[0]
            return not above or (above in folders and is_reached(above))

        found: Files = {}
        for path, number in names.items():
            if is_reached(path):
                is_folder = number == FOLDER
                found[f"{path}/" if is_folder else path] = b"" if is_folder else contents[number]
        return found

    @staticmethod
    def _write(contents: dict[int, bytes], write: Write | Shorten, variant: Any) -> None:
        data = contents[write.file]
        if isinstance(write, Shorten):
            contents[write.file] = data[: write.size] if variant else data
        elif variant is not None:
            offset, new = variant
            data = data.ljust(offset, b"\0")
            contents[write.file] = data[:offset] + new + data[offset + len(new) :]

    @staticmethod
    def _rename(names: dict[str, int], change: Name) -> None:
        if change.gone:
            names.pop(change.gone, None)
        if change.file is None:
            names.pop(change.path, None)
        else:
            names[change.path] = change.file


def _one_torn(writes: Sequence[Write | Shorten]) -> Iterator[tuple[Any, ...]]:
    """Every write is there or is not, but for one, of which each variant is taken."""
    every = [write.variants() for write in writes]
    yield from product(*(variants[:2] for variants in every))
    for torn, variants in enumerate(every):
        others = (v[:2] if number != torn else variants[2:] for number, v in enumerate(every))
        yield from product(*others)


class Known(Generic[T]):
    """What a program did with a state: states that differ only in what it never looks at are one.

    What it looks at: the names, the sizes of the files that `measures` selects, and the contents
    of those that it opens. Where all of that is equal, it does the same again.
    """

    def __init__(self, measures: Callable[[str], bool]) -> None:
        self._measures = measures
        self._met: dict[Any, list[tuple[Files, T]]] = {}

    def result(self, files: Files) -> T | None:
        """Returns what became of an equal state, or None if there was none yet."""
        for read, result in self._met.get(self._key(files), []):
            if all(files[path] == read[path] for path in read):
                return result
        return None

    def learn(self, files: Files, opened: set[str], result: T) -> None:
        read = {path: data for path, data in files.items() if path in opened}
        self._met.setdefault(self._key(files), []).append((read, result))

    def _key(self, files: Files) -> Any:
        return tuple(sorted((p, len(d) if self._measures(p) else 0) for p, d in files.items()))


_watchers: list[tuple[Path, set[str]]] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _watchers and isinstance(args[0], str):
        folder, opened = _watchers[-1]
        if args[0].startswith(f"{folder}/"):
            opened.add(args[0].removeprefix(f"{folder}/"))


@contextmanager
def opened_files(folder: Path) -> Iterator[set[str]]:
    """Yields the names of the files below a folder that are opened in the meantime."""
    if _audit not in _hooks:
        _hooks.append(_audit)
        sys.addaudithook(_audit)
    opened: set[str] = set()
    _watchers.append((folder, opened))
    try:
        yield opened
    finally:
        _watchers.pop()


_hooks: list[Callable[..., None]] = []  # a hook stays until the process ends


def lay_out(files: Files, folder: Path) -> None:
    """Writes a state to an empty folder."""
    folder.mkdir()
    for path, data in sorted(files.items()):
        if path.endswith("/"):
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
