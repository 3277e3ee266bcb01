"""Keeps the frames of a game in few bytes: now and then a whole one, else only what changed.

    number:   0      1        2            15       16     17
    record:   key    changes  changes  …   changes  key    changes  …
    after:    0      1        2            15       0      1            frames since its key

A key is a frame under raw deflate. Changes are the pixels that differ from the frame before:
n places (uint16, little-endian), then n values (uint8). A frame is a key if its changes would
take more bytes than the key before it, and at least every `CHAIN` frames, so that showing any
frame takes one inflation and fewer than `CHAIN` changes. What goes is the oldest chain.

Records lie one after the other in chunks, of which none is ever crossed. A record's position is
counted in bytes from the first record ever; the index (position, size, after) is in memory, the
chunks are in memory or in a file.
"""

from __future__ import annotations

import os
import tempfile
import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from firmware_sim.runtime import Array

CHAIN = 16  # frames from a key to the next, at most
CHUNK = 2**16  # bytes
LEAST_CHUNKS = 4  # hold two chains and a stack of frames that do not compress at all
MOST_PIXELS = 2**13  # of a frame: places are uint16, and deflate's window is this long
INDEX_BYTES = 8 + 2 + 1  # of a frame, in memory: position, size, after
# Fixed codes are inflated in about two thirds of the time, for up to 9 % more bytes: a frame is so
# short that reading tables of codes of its own takes long.
_LEVEL, _STRATEGY = 6, zlib.Z_FIXED
_WINDOW = -13  # log₂ of deflate's window in bytes; negative for neither header nor checksum
_CHANGE_BYTES = 3  # a place and a value


class Arena(Protocol):
    """Bytes by position, in whole chunks; what lies before `forget`'s position may be gone."""

    def write(self, position: int, record: bytes) -> None: ...

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes between two positions, in pieces."""

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

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        for number, begin, end in _pieces(start, stop):
            yield bytes(memoryview(self._chunks[number - self._first])[begin:end])

    def forget(self, position: int) -> None:
        while self._first < position // CHUNK and self._chunks:
            self._chunks.popleft()
            self._first += 1


class DiskArena:
    """Chunks in a file without a name: it goes with the process, however that ends.

    It is read and not mapped, since mapped pages would count as memory of the process.
    """

    def __init__(self, folder: Path, chunks: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, name = tempfile.mkstemp(dir=folder)
        weakref.finalize(self, os.close, self._file)
        Path(name).unlink()
        self._chunks = chunks
        # A full disk is noticed now, and not in the middle of a game.
        os.posix_fallocate(self._file, 0, chunks * CHUNK)

    def write(self, position: int, record: bytes) -> None:
        os.pwrite(self._file, record, position % (self._chunks * CHUNK))

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        for number, begin, end in _pieces(start, stop):
            place = number % self._chunks * CHUNK + begin
            yield os.pread(self._file, end - begin, place)

    def forget(self, position: int) -> None:
        """Nothing to do: later chunks take the place of earlier ones."""


class Frames:
    """The newest frames, numbered from the first one ever; at most `most`, in so many chunks."""

    def __init__(self, shape: tuple[int, int], *, most: int, chunks: int, arena: Arena) -> None:
        self.pixels = shape[0] * shape[1]
        if self.pixels > MOST_PIXELS:
            raise ValueError(f"a frame has at most {MOST_PIXELS} pixels, not {self.pixels}.")
        if chunks < LEAST_CHUNKS:
            raise ValueError(f"frames take at least {LEAST_CHUNKS * CHUNK} bytes.")
        self.first = 0  # the oldest that can be shown
        self.end = 0  # the newest, and one
        self._most = most
        self._chunks = chunks
        self._arena = arena
        # A chain stays until all of it is old, so there may be almost one more than is asked for.
        self._rows = most + CHAIN
        self._position = np.zeros(self._rows, np.int64)
        self._size = np.zeros(self._rows, np.uint16)
        self._after = np.zeros(self._rows, np.uint8)
        self._head = 0  # position behind the newest record
        self._newest = np.zeros(self.pixels, np.uint8)
        self._key_size = 0

    @property
    def stored_bytes(self) -> int:
        """From the oldest record to the newest, with the gaps at the ends of chunks."""
        return self._head - int(self._position[self.first % self._rows]) if self.end else 0

    def append(self, frame: Array) -> None:
        pixels = np.ascontiguousarray(frame, np.uint8).reshape(-1)
        record, after = self._encode(pixels)
        size = len(record)
        record += b"\0" * (size % 2)  # places can be read as uint16 only from even positions
        start = self._head
        if start % CHUNK + len(record) > CHUNK:
            start += CHUNK - start % CHUNK
        self._make_room(start)
        self._arena.write(start, record)
        row = self.end % self._rows
        self._position[row], self._size[row], self._after[row] = start, size, after
        self._head = start + len(record)
        self._newest = pixels.copy()
        self.end += 1

    def histories(self, newest: Array, length: int) -> Array:
        """The last `length` frames up to each of `newest`, oldest first: uint8 [length, n, pixels].

        Where a history reaches back behind the first frame, that one is shown.
        """
        count = len(newest)
        numbers = newest - np.arange(length)[::-1, None]  # [length, n]
        oldest = np.maximum(numbers[0], self.first)
        keys = oldest - self._after[oldest % self._rows]
        data, shift = self._read(keys, newest)
        # All records that are needed, in the order in which they are to be put on: for the oldest
        # frames their keys and the changes since; for each later frame its own record.
        since = oldest - keys
        later, sample = np.nonzero(numbers[1:] > self.first)
        stages = np.concatenate([np.zeros(count + since.sum(), np.int64), later + 1])
        samples = np.concatenate([np.arange(count), np.repeat(np.arange(count), since), sample])
        needed = np.concatenate([keys, _ranges(keys + 1, since), numbers[later + 1, sample]])
        rows = needed % self._rows
        starts = self._position[rows] + shift[samples]
        sizes = self._size[rows].astype(np.int64)
        whole = self._after[rows] == 0

        changes = np.where(whole, 0, sizes // _CHANGE_BYTES)
        canvases = (stages * count + samples) * self.pixels
        places = np.repeat(canvases, changes) + data.view("<u2")[_ranges(starts // 2, changes)]
        values = data[_ranges(starts + 2 * changes, changes)]

        shown = np.empty((length, count, self.pixels), np.uint8)
        records = np.searchsorted(stages, np.arange(length + 1))
        ends = np.concatenate([[0], np.cumsum(changes)])[records]
        keys_of: list[list[int]] = [[] for _ in range(length)]  # records of whole frames by stage
        for record in np.flatnonzero(whole).tolist():
            keys_of[stages[record]].append(record)
        # Single numbers are taken out of lists, which is several times as fast.
        number_of, start_of, size_of = needed.tolist(), starts.tolist(), sizes.tolist()
        inflated: dict[int, Array] = {}  # each once
        for stage in range(length):
            if stage:
                shown[stage] = shown[stage - 1]
            for record in keys_of[stage]:
                number, start = number_of[record], start_of[record]
                if number not in inflated:
                    inflated[number] = self._inflate(data[start : start + size_of[record]])
                shown[stage, samples[record]] = inflated[number]
            # Where a place comes twice numpy keeps the later value.
            part = slice(ends[stage], ends[stage + 1])
            shown.reshape(-1)[places[part]] = values[part]
        return shown

    def _read(self, oldest: Array, newest: Array) -> tuple[Array, Array]:
        """All records from each oldest to its newest, and what to add to a position of theirs."""
        last = newest % self._rows
        starts = self._position[oldest % self._rows]
        stops = self._position[last] + self._size[last] + self._size[last] % 2
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        read = self._arena.read
        data = b"".join(piece for start, stop in spans for piece in read(start, stop))
        lengths = stops - starts
        return np.frombuffer(data, np.uint8), np.cumsum(lengths) - lengths - starts

    def _inflate(self, record: Array) -> Array:
        return np.frombuffer(zlib.decompress(record.data, _WINDOW, self.pixels), np.uint8)

    def _encode(self, pixels: Array) -> tuple[bytes, int]:
        """The record of the next frame, and how many frames it comes after its key."""
        after = int(self._after[(self.end - 1) % self._rows]) + 1
        if self.end and after < CHAIN:
            places = np.flatnonzero(pixels != self._newest)
            if _CHANGE_BYTES * len(places) < self._key_size:
                return places.astype("<u2").tobytes() + pixels[places].tobytes(), after
        deflate = zlib.compressobj(_LEVEL, wbits=_WINDOW, strategy=_STRATEGY)
        record = deflate.compress(pixels.data) + deflate.flush()
        self._key_size = len(record)
        return record, 0

    def _make_room(self, start: int) -> None:
        """Drops the oldest chains until one more frame at `start` is within both limits."""
        while self._oldest_chunk() <= start // CHUNK - self._chunks or (
            self._second_chain() <= self.end + 1 - self._most
        ):
            self.first = self._second_chain()
        self._arena.forget(int(self._position[self.first % self._rows]))

    def _oldest_chunk(self) -> int:
        return int(self._position[self.first % self._rows]) // CHUNK

    def _second_chain(self) -> int:
        number = self.first + 1
        while number < self.end and self._after[number % self._rows]:
            number += 1
        return number


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The chunks between two positions, with the part of each."""
    for number in range(start // CHUNK, (stop - 1) // CHUNK + 1):
        yield number, max(start - number * CHUNK, 0), min(stop - number * CHUNK, CHUNK)


def _ranges(starts: Array, counts: Array) -> Array:
    """start, start + 1, …, `count` numbers each, one range behind the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Array = np.repeat(starts - (ends - counts), counts) + np.arange(total)
    return ranges
