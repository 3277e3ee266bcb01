"""Keeps the frames of a game in few bytes: what changed, and now and then a whole one beside it.

    number:   0      1        2            7        8        9
    record:   -      changes  changes  …   changes  changes  changes  …
              key                                   key
    after:    0      1        2            7        0        1            frames since its key

Changes lead from the frame before to this one; they are n places (uint16, little-endian), m moves
(uint8 to, uint8 from) and n values (uint8). A move takes a whole row of the frame before to
another height: where a game scrolls, it stands for many pixels. Then the pixels at the places get
the values. A key is a frame under raw deflate. There is one at least every `CHAIN` frames, so that
showing any frame takes one inflation and fewer than `CHAIN` changes, and the frames after it take
nothing but changes. Where changes would be long a key stands alone.

Records lie one after the other in chunks, of which none is ever crossed. A record's position is
counted in bytes from the first record ever; the index is in memory, the chunks are in memory or in
a file. What goes is the oldest chain.
"""

from __future__ import annotations

import os
import tempfile
import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from firmware_sim.tensor_spec import Array

CHAIN = 8  # frames from a key to the next, at most
STACK = 4  # frames that a player sees at once
CHUNK = 2**16  # bytes
LEAST_CHUNKS = 4  # hold two chains and a stack of frames that do not compress at all
MOST_ROWS = 2**8  # of a frame: moves are uint8
MOST_PIXELS = 2**13  # of a frame: places are uint16, and deflate's window is this long
INDEX_BYTES = 8 + 2 + 1 + 2 + 1  # of a frame: position, changes, moves, bytes of its key, after
# Fixed codes are inflated in about two thirds of the time, for up to 9 % more bytes: a frame is so
# short that reading tables of codes of its own takes long.
_LEVEL, _STRATEGY = 6, zlib.Z_FIXED
_WINDOW = -13  # log₂ of deflate's window in bytes; negative for neither header nor checksum
_CHANGE_BYTES = 3  # a place and a value
_MOVE_BYTES = 2
_MOST_OF_KEY = 1.5  # changes of so many times a key's bytes are put on as fast as it is inflated
_FEW = 150  # changed pixels, for which moves are not worth looking for
_TO_OLDEST = np.arange(1 - CHAIN, 1)[:, None]  # frames of a chain, counted from the oldest shown
_TO_NEWEST = np.arange(1 - STACK, 1)[:, None]  # frames after that, counted from the newest
# A word has a pixel of STACK frames, the oldest in its lowest byte: which bytes are from before
# frame k, and a factor that puts a pixel of frame k into all others.
_BEFORE = [np.uint32((1 << 8 * k) - 1) for k in range(STACK)]
_FROM_ON = [np.uint32(0x01010101 >> 8 * k << 8 * k) for k in range(STACK)]


class Arena(Protocol):
    """Bytes by position, in whole chunks; what lies before `forget`'s position may be gone."""

    def write(self, position: int, record: bytes) -> None: ...

    def read(self, start: int, stop: int) -> bytes | bytearray:
        """What lies between two positions."""

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
        if offset + stop - start <= CHUNK:  # as most are, and pieces take as long as all the rest
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

    def read(self, start: int, stop: int) -> bytes | bytearray:
        return b"".join(
            os.pread(self._file, end - begin, number % self._chunks * CHUNK + begin)
            for number, begin, end in _pieces(start, stop)
        )

    def forget(self, position: int) -> None:
        """Nothing to do: later chunks take the place of earlier ones."""


@dataclass(frozen=True)
class _Record:
    """A frame as it is stored."""

    content: bytes  # places, moves and values, then the key
    changes: int = 0
    moves: int = 0
    key_bytes: int = 0


@dataclass(frozen=True, eq=False)
class _Step:
    """What is put on the canvases of a batch: whole frames, then moves, then changes.

    Rows and pixels are counted through all canvases.
    """

    keys: list[tuple[int, memoryview]]  # canvas, and its frame under deflate
    to_rows: Array
    from_rows: Array
    places: Array
    values: Array


class Frames:
    """The newest frames, numbered from the first one ever; at most `most`, in so many chunks."""

    def __init__(self, shape: tuple[int, int], *, most: int, chunks: int, arena: Arena) -> None:
        self._shape = shape
        self.pixels = shape[0] * shape[1]
        if self.pixels > MOST_PIXELS or shape[0] > MOST_ROWS:
            raise ValueError(
                f"a frame has at most {MOST_PIXELS} pixels in {MOST_ROWS} rows, "
                f"not {self.pixels} in {shape[0]}."
            )
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
        self._changes = np.zeros(self._rows, np.uint16)
        self._moves = np.zeros(self._rows, np.uint8)
        self._key_bytes = np.zeros(self._rows, np.uint16)
        self._after = np.zeros(self._rows, np.uint8)
        self._head = 0  # position behind the newest record
        self._newest = np.zeros(self.pixels, np.uint8)
        self._last_key_bytes = 0
        self._canvas = np.empty((0, self.pixels), np.uint8)  # where the last batch was put together

    @property
    def stored_bytes(self) -> int:
        """From the oldest record to the newest, with the gaps at the ends of chunks."""
        return self._head - int(self._position[self.first % self._rows]) if self.end else 0

    def append(self, frame: Array) -> None:
        pixels = np.ascontiguousarray(frame, np.uint8).reshape(-1)
        record = self._encode(pixels)
        start = self._head
        if start % CHUNK + len(record.content) > CHUNK:
            start += CHUNK - start % CHUNK
        self._make_room(start)
        self._arena.write(start, record.content)
        before, row = (self.end - 1) % self._rows, self.end % self._rows
        self._position[row] = start
        self._changes[row], self._moves[row] = record.changes, record.moves
        self._key_bytes[row] = record.key_bytes
        self._after[row] = 0 if record.key_bytes else self._after[before] + 1
        # Places can be read as uint16 only from even positions.
        self._head = start + len(record.content) + len(record.content) % 2
        self._newest = pixels.copy()
        self.end += 1

    def stacks(self, newest: Array, out: Array) -> tuple[Array, Array]:
        """Of each frame in `newest` the STACK frames before it, and the STACK that end with it.

        Both are uint8 [n, pixels, STACK], the oldest frame first; where they would begin before
        the first frame, that one is shown. They lie in `out`, uint32 [2, n, pixels].
        """
        *oldest, one, two, three, last = self._steps(newest)
        if len(self._canvas) != len(newest):
            self._canvas = np.empty((len(newest), self.pixels), np.uint8)
        canvas, (words, later_words) = self._canvas, out
        for step in oldest:
            self._put_on(canvas, step)
        np.multiply(canvas, _FROM_ON[0], out=words, dtype="<u4")
        for k, step in enumerate((one, two, three), start=1):
            self._put_on(canvas, step)
            # Most pixels are what they were: to change the others is faster than to write all.
            for sample, _ in step.keys:
                _show(k, canvas[sample], words[sample], slice(None))
            if len(step.to_rows):
                by_row = (-1, self._shape[1])
                _show(k, canvas.reshape(by_row), words.reshape(by_row), step.to_rows)
            _show(k, canvas.reshape(-1), words.reshape(-1), step.places)
        self._put_on(canvas, last)
        shape = (*canvas.shape, STACK)
        before = words.view(np.uint8).reshape(shape)
        after = np.right_shift(words, 8, out=later_words).view(np.uint8).reshape(shape)
        after[..., -1] = canvas
        return before, after

    def _steps(self, newest: Array) -> list[_Step]:
        """Some steps to the oldest frames, from their keys on, then one to each later frame."""
        oldest = np.maximum(newest - STACK, self.first)
        keys = oldest - self._after[oldest % self._rows]
        # Frames by step and sample; 0 is the step to the oldest, where some have no frames before.
        grid = np.concatenate([oldest + _TO_OLDEST, newest + _TO_NEWEST])
        wanted = grid >= keys
        wanted[CHAIN:] &= grid[CHAIN:] > oldest
        at, samples = np.nonzero(wanted)
        numbers = grid[wanted]
        rows = numbers % self._rows
        data, shift = self._read(keys, newest)
        starts = self._position[rows] + shift[samples]
        changes, moves = self._counts(rows)
        key_starts = starts + _CHANGE_BYTES * changes + _MOVE_BYTES * moves
        key_bytes = self._key_bytes[rows]
        whole = (numbers == keys[samples]) | (changes == 0) & (key_bytes > 0)
        changes[whole] = moves[whole] = 0  # such a frame needs none

        halves = data.view("<u2")
        first_values = starts + 2 * changes + _MOVE_BYTES * moves
        values = data[_ranges(first_values, changes)]
        starts //= 2
        places = np.repeat(samples * self.pixels, changes)
        places += halves[_ranges(starts, changes)]
        pairs = halves[_ranges(starts + changes, moves)]
        canvas_rows = np.repeat(samples * self._shape[0], moves)
        to_rows, from_rows = canvas_rows + (pairs & 0xFF), canvas_rows + (pairs >> 8)
        wholes = np.flatnonzero(whole)
        key_starts = key_starts[wholes]
        key_stops = key_starts + key_bytes[wholes]
        spans = zip(samples[wholes].tolist(), key_starts.tolist(), key_stops.tolist(), strict=True)
        inflatable = [(sample, data[start:stop].data) for sample, start, stop in spans]

        # Changes up to the oldest frames need no steps of their own where nothing moves.
        moving = sorted({*at[moves > 0].tolist()} & {*range(1, CHAIN)})
        bounds = np.searchsorted(at, [0, *moving, *range(CHAIN, CHAIN + STACK + 1)])
        return [
            _Step(inflatable[k], to_rows[m], from_rows[m], places[c], values[c])
            for k, m, c in zip(
                _slices(np.searchsorted(wholes, bounds)),
                _slices(_before(moves)[bounds]),
                _slices(_before(changes)[bounds]),
                strict=True,
            )
        ]

    def _read(self, oldest: Array, newest: Array) -> tuple[Array, Array]:
        """All records from each oldest to its newest, and what to add to a position of theirs."""
        last = newest % self._rows
        changes, moves = self._counts(last)
        starts = self._position[oldest % self._rows]
        stops = self._position[last] + _CHANGE_BYTES * changes + _MOVE_BYTES * moves
        stops += self._key_bytes[last]
        stops += stops % 2
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        data = b"".join([self._arena.read(start, stop) for start, stop in spans])
        lengths = stops - starts
        return np.frombuffer(data, np.uint8), np.cumsum(lengths) - lengths - starts

    def _counts(self, rows: Array) -> tuple[Array, Array]:
        """Of changes and moves, in a type in which sums are right."""
        return self._changes[rows].astype(np.int64), self._moves[rows].astype(np.int64)

    def _put_on(self, canvas: Array, step: _Step) -> None:
        for sample, key in step.keys:
            canvas[sample] = np.frombuffer(zlib.decompress(key, _WINDOW, self.pixels), np.uint8)
        if len(step.to_rows):
            rows = canvas.reshape(-1, self._shape[1])
            rows[step.to_rows] = rows[step.from_rows]
        canvas.reshape(-1)[step.places] = step.values

    def _encode(self, pixels: Array) -> _Record:
        places, moves = np.flatnonzero(pixels != self._newest), b""
        if len(places) > _FEW:
            moved, found = self._moved(pixels)
            left = np.flatnonzero(pixels != moved)
            if 2 * len(left) < len(places):  # moves take time when they are shown
                places, moves = left, found
        changes = places.astype("<u2").tobytes() + moves + pixels[places].tobytes()
        longest = min(_MOST_OF_KEY * self._last_key_bytes, longest_changes(self.pixels))
        related = self.end > 0 and len(changes) <= longest
        if related and self._after[(self.end - 1) % self._rows] + 1 < CHAIN:
            return _Record(changes, len(places), len(moves) // _MOVE_BYTES)
        deflate = zlib.compressobj(_LEVEL, wbits=_WINDOW, strategy=_STRATEGY)
        key = deflate.compress(pixels.data) + deflate.flush()
        self._last_key_bytes = len(key)
        if not related:
            return _Record(key, key_bytes=len(key))
        return _Record(changes + key, len(places), len(moves) // _MOVE_BYTES, len(key))

    def _moved(self, pixels: Array) -> tuple[Array, bytes]:
        """The newest frame with rows moved so that it looks more like `pixels`, and the moves."""
        old, new = self._newest.reshape(self._shape), pixels.reshape(self._shape)
        differ = np.count_nonzero(old != new, axis=1)
        to = np.flatnonzero(differ)
        # Every fourth pixel is enough to find the row that is most alike.
        coarse = np.ascontiguousarray(old[:, ::4])
        from_ = np.count_nonzero(new[to, None, ::4] != coarse, axis=2).argmin(axis=1)
        better = np.count_nonzero(new[to] != old[from_], axis=1) + 1 < differ[to]
        to, from_ = to[better], from_[better]
        moved = old.copy()
        moved[to] = old[from_]
        return moved.reshape(-1), np.stack([to, from_], axis=1).astype(np.uint8).tobytes()

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


def longest_key(pixels: int) -> int:
    """Bytes of a frame that does not compress: deflate's stored blocks have short headers."""
    return pixels + 16


def longest_changes(pixels: int) -> int:
    """So few bytes that changes, with a key every CHAIN frames, are never more than keys alone."""
    return pixels // 2


def _before(counts: Array) -> Array:
    """How many there are before each, and in all."""
    return np.concatenate([[0], np.cumsum(counts)])


def _slices(bounds: Array) -> list[slice]:
    return [slice(start, stop) for start, stop in pairwise(bounds.tolist())]


def _show(k: int, pixels: Array, words: Array, where: Array | slice) -> None:
    """Puts pixels, or rows of them, into the bytes of their words that show frame k and later."""
    shown = np.multiply(pixels[where], _FROM_ON[k], dtype="<u4")
    shown |= words[where] & _BEFORE[k]
    words[where] = shown
