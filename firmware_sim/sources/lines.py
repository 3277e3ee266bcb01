"""Lines of a file that grows, a pipe, a serial device, or the standard input.

A file that is replaced or cut is read from its new beginning; a pipe or device that goes away is
opened again. Nothing spins: a file is looked at five times a second, the others are waited for.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

LONGEST = 64 * 2**10  # bytes of a line
CHUNK = 64 * 2**10  # bytes read at once
LOOK_S = 0.2  # between two looks at a file that may have grown
IDLE_S = 0.5  # at most without a word that nothing comes
FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 5.0  # until something that went away is opened again
STDIN = "-"
Reading = Generator["Line | Break | None", None, bool]  # returns whether anything came


class Break(Enum):
    """What interrupts the lines."""

    NEW_FILE = auto()  # the next line is the first of a file
    REOPENED = auto()  # lines are missing before the next one
    BAD = auto()  # a line that is too long, or no text


@dataclass(frozen=True)
class Position:
    """Up to where a file was read; other files have other numbers."""

    inode: int
    offset: int


@dataclass(frozen=True)
class Line:
    """A line without its end; `end` is the offset behind it."""

    text: str
    end: int
    again: bool = False  # the first line of a file that is continued further below


class Lines:
    """Reads lines until `closing` is set, or until nothing can come any more."""

    def __init__(
        self,
        place: str,
        closing: threading.Event,
        *,
        follow: bool = True,
        resume: Position | None = None,
        from_end: bool = False,
        waits: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`waits` is told, once, why nothing can be read at the moment."""
        self._place = place
        self._closing = closing
        self._follow = follow
        self._resume = resume
        self._from_end = from_end
        self._waits = waits
        self._rest = bytearray()
        self._too_long = False
        self._offset = 0
        self._began = Position(0, 0)
        self._inode = 0

    @property
    def inode(self) -> int:
        """The number of the file that is being read; 0 for what is no file."""
        return self._inode

    @property
    def began(self) -> Position:
        """Where reading began in the file that is being read."""
        return self._began

    @property
    def is_device(self) -> bool:
        """Whether lines come from a device, such as a serial line."""
        if self._place == STDIN:
            return False
        with suppress(OSError):
            return stat.S_ISCHR(Path(self._place).stat().st_mode)
        return self._place.startswith("/dev/")

    def read(self) -> Iterator[Line | Break | None]:
        """Yields lines, what interrupts them, and None while nothing comes."""
        delay = FIRST_DELAY_S
        told = False
        while not self._closing.is_set():
            try:
                opened = self._open()
            except OSError as error:
                if not told:
                    self._waits(f"{self._place} cannot be opened ({error.strerror})")
                    told = True
                yield from self._pause(delay)
                delay = min(2 * delay, LONGEST_DELAY_S)
                continue
            try:
                came = yield from self._read_until_gone(opened)
            finally:
                os.close(opened)
            if self._place == STDIN or not self._follow:
                return
            if came:
                delay, told = FIRST_DELAY_S, False
            if not self._inode and not told and not self._closing.is_set():
                self._waits(f"{self._place} has ended, or went away")
                told = True
            if not self._inode:
                self._rest.clear()
                yield Break.REOPENED
            yield from self._pause(delay)
            delay = min(2 * delay, LONGEST_DELAY_S)

    def _open(self) -> int:
        if self._place == STDIN:
            return os.dup(0)
        return os.open(self._place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)

    def _read_until_gone(self, opened: int) -> Reading:
        status = os.fstat(opened)
        if stat.S_ISREG(status.st_mode) and self._place != STDIN:
            return (yield from self._read_file(opened, status))
        return (yield from self._read_stream(opened, stat.S_ISCHR(status.st_mode)))

    def _read_stream(self, opened: int, is_device: bool) -> Reading:
        came = False
        # A serial line is joined in the middle of a line.
        begun = not is_device or self._place == STDIN
        while not self._closing.is_set():
            if not select.select([opened], [], [], IDLE_S)[0]:
                yield None
                continue
            try:
                data = os.read(opened, CHUNK)
            except BlockingIOError:
                continue
            except OSError:
                break
            if not data:
                break
            came = True
            if not begun:
                _, newline, data = data.partition(b"\n")
                begun = bool(newline)
            yield from self._split(data)
        else:
            return came
        if self._rest and (self._place == STDIN or not self._follow):
            yield from self._split(b"\n")
        return came

    def _read_file(self, opened: int, status: os.stat_result) -> Reading:
        """Reads a file until another one has its name and something in it.

        Whoever writes keeps to the old file until it opens the new one; so that one is read to its
        end once more when the new one has begun.
        """
        self._inode = status.st_ino
        self._to(opened, self._first_offset(status))
        yield Break.NEW_FILE
        if self._offset:
            first, newline, _ = os.pread(opened, LONGEST, 0).partition(b"\n")
            if newline:
                yield Line(first.decode("utf-8", "replace").rstrip("\r"), 0, again=True)
        came = replaced = False
        while not self._closing.is_set():
            data = os.read(opened, CHUNK)
            if data:
                came = True
                yield from self._split(data)
                continue
            if replaced:
                self._to(opened, 0)
                return came
            if not self._follow:
                if self._rest:
                    yield from self._split(b"\n")
                return came
            yield None
            self._closing.wait(LOOK_S)
            if os.fstat(opened).st_size < self._offset + len(self._rest):
                self._to(opened, 0)
                yield Break.NEW_FILE
            with suppress(OSError):  # removed; the next one may come
                now = Path(self._place).stat()
                begun = now.st_size > 0 or not stat.S_ISREG(now.st_mode)
                replaced = now.st_ino != self._inode and begun
        return came

    def _first_offset(self, status: os.stat_result) -> int:
        """Returns where to begin in a file: at its beginning, unless this is the first one."""
        resume, self._resume = self._resume, None
        from_end, self._from_end = self._from_end, False
        if resume is None:
            return status.st_size if from_end else 0
        known = resume.inode == status.st_ino and resume.offset <= status.st_size
        return resume.offset if known else 0

    def _to(self, opened: int, offset: int) -> None:
        os.lseek(opened, offset, os.SEEK_SET)
        self._offset = offset
        self._began = Position(self._inode, offset)
        self._rest.clear()
        self._too_long = False

    def _split(self, data: bytes) -> Iterator[Line | Break | None]:
        *whole, rest = data.split(b"\n")
        for piece in whole:
            if self._closing.is_set():
                return
            line = bytes(self._rest) + piece
            self._rest.clear()
            self._offset += len(line) + 1
            if self._too_long or len(line) > LONGEST:
                self._too_long = False
                yield Break.BAD
                continue
            try:
                yield Line(line.decode("utf-8").rstrip("\r").removeprefix("\ufeff"), self._offset)
            except UnicodeDecodeError:
                yield Break.BAD
        self._rest += rest
        if len(self._rest) > LONGEST:
            self._offset += len(self._rest)
            self._rest.clear()
            self._too_long = True

    def _pause(self, seconds: float) -> Iterator[None]:
        while seconds > 0 and not self._closing.is_set():
            yield None
            self._closing.wait(min(seconds, IDLE_S))
            seconds -= IDLE_S
