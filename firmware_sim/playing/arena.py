"""Where the records of frames are stored: bytes by position, in chunks, in memory or on disk.

A position is counted in bytes from the first record ever. No record crosses the end of a chunk.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

CHUNK = 2**16  # bytes


class Arena(Protocol):
    """Bytes by position; those before the position given to `forget` may be dropped."""

    def write(self, position: int, record: bytes) -> None: ...

    def read(self, start: int, stop: int) -> bytes | bytearray:
        """Returns the bytes between two positions."""

    def forget(self, position: int) -> None: ...


class MemoryArena:
    """Chunks in memory, made when they are first written."""

    def __init__(self) -> None:
        self._chunks: deque[bytearray] = deque()
        self._first = 0  # number of the first chunk

    def write(self, position: int, record: bytes) -> None:
        number, offset = divmod(position, CHUNK)
        while number - self._first >= len(self._chunks):
            self._chunks.append(bytearray(CHUNK))
        self._chunks[number - self._first][offset : offset + len(record)] = record

    def read(self, start: int, stop: int) -> bytes | bytearray:
        number, offset = divmod(start, CHUNK)
        if offset + stop - start <= CHUNK:  # as most do; joining pieces is slower
            return self._chunks[number - self._first][offset : offset + stop - start]
        return b"".join(
            self._chunks[number - self._first][begin:end]
            for number, begin, end in _pieces(start, stop)
        )

    def forget(self, position: int) -> None:
        while self._first < position // CHUNK and self._chunks:
            self._chunks.popleft()
            self._first += 1


class DiskArena:
    """Chunks in a file without a name: the system removes it with the process, however that ends.

    It is read and not mapped, since mapped pages would count as memory of the process.
    """

    def __init__(self, folder: Path, chunks: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, name = tempfile.mkstemp(dir=folder)
        weakref.finalize(self, os.close, self._file)
        Path(name).unlink()
        self._chunks = chunks
        # A full disk is noticed now, and not during a game.
        os.posix_fallocate(self._file, 0, chunks * CHUNK)

    def write(self, position: int, record: bytes) -> None:
        os.pwrite(self._file, record, position % (self._chunks * CHUNK))

    def read(self, start: int, stop: int) -> bytes | bytearray:
        return b"".join(
            os.pread(self._file, end - begin, number % self._chunks * CHUNK + begin)
            for number, begin, end in _pieces(start, stop)
        )

    def forget(self, position: int) -> None:
        """Nothing to do: later chunks take the place of earlier ones."""


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields each chunk between two positions, with the part of it that lies between them."""
    for number in range(start // CHUNK, (stop - 1) // CHUNK + 1):
        yield number, max(start - number * CHUNK, 0), min(stop - number * CHUNK, CHUNK)
