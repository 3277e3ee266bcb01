"""Keeps the newest frames of a game in few bytes, and shows stacks of them.

    number:   0      1        2            7        8        9
    record:   -      changes  changes  …   changes  changes  changes  …
              key                                   key
    after:    0      1        2            7        0        1            frames since its key

`frame_codec` has the format of a record, `arena` the places where records are stored, one after the
other. The index of records is in memory. When the space is used up, the oldest chain is dropped: a
key and the frames up to the next key.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from firmware_sim.playing.arena import CHUNK, Arena
from firmware_sim.playing.frame_codec import (
    CHAIN,
    CHANGE_BYTES,
    MOST_PIXELS,
    MOST_ROWS,
    MOVE_BYTES,
    Encoder,
    inflate,
)
from firmware_sim.tensor_spec import Array

STACK = 4  # frames that a player sees at once
LEAST_CHUNKS = 4  # hold two chains and a stack of frames that do not compress at all
INDEX_BYTES = 8 + 2 + 1 + 2 + 1  # of a frame: position, changes, moves, bytes of its key, after
_TO_OLDEST = np.arange(1 - CHAIN, 1)[:, None]  # frames of a chain, counted from the oldest shown
_TO_NEWEST = np.arange(1 - STACK, 1)[:, None]  # frames after that, counted from the newest
# A word has a pixel of STACK frames, the oldest in its lowest byte: which bytes are from before
# frame k, and a factor that puts a pixel of frame k into all others.
_BEFORE = [np.uint32((1 << 8 * k) - 1) for k in range(STACK)]
_FROM_ON = [np.uint32(0x01010101 >> 8 * k << 8 * k) for k in range(STACK)]


@dataclass(frozen=True, eq=False)
class _Step:
    """What is drawn on the canvases of a batch: whole frames, then moves, then changes.

    Rows and pixels are counted through all canvases.
    """

    keys: list[tuple[int, memoryview]]  # canvas, and its frame under deflate
    to_rows: Array
    from_rows: Array
    places: Array
    values: Array


class Frames:
    """The newest frames, numbered from the first one ever; at most `most`, in `chunks` chunks."""

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
        self.end = 0  # number of the next frame
        self._most = most
        self._chunks = chunks
        self._arena = arena
        # A chain is dropped as a whole, so almost one more chain than `most` may be held.
        self._rows = most + CHAIN
        self._position = np.zeros(self._rows, np.int64)
        self._changes = np.zeros(self._rows, np.uint16)
        self._moves = np.zeros(self._rows, np.uint8)
        self._key_bytes = np.zeros(self._rows, np.uint16)
        self._after = np.zeros(self._rows, np.uint8)
        self._head = 0  # position behind the newest record
        self._encoder = Encoder(shape)
        self._canvas = np.empty((0, self.pixels), np.uint8)  # where the last batch was put together

    @property
    def stored_bytes(self) -> int:
        """Bytes from the oldest record to the newest, with the gaps at the ends of chunks."""
        return self._head - int(self._position[self.first % self._rows]) if self.end else 0

    def append(self, frame: Array) -> None:
        pixels = np.ascontiguousarray(frame, np.uint8).reshape(-1)
        record = self._encoder.encode(pixels)
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
        self.end += 1

    def stacks(self, newest: Array, out: Array) -> tuple[Array, Array]:
        """Returns, for each of `newest`, the STACK frames before it and the STACK that end with it.

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
        """Returns the steps from the keys to the oldest frames, then one to each later frame."""
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
        key_starts = starts + CHANGE_BYTES * changes + MOVE_BYTES * moves
        key_bytes = self._key_bytes[rows]
        whole = (numbers == keys[samples]) | (changes == 0) & (key_bytes > 0)
        changes[whole] = moves[whole] = 0  # such a frame needs none

        halves = data.view("<u2")
        first_values = starts + 2 * changes + MOVE_BYTES * moves
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
        """Returns all records from each oldest to its newest, and the offset of their positions."""
        last = newest % self._rows
        changes, moves = self._counts(last)
        starts = self._position[oldest % self._rows]
        stops = self._position[last] + CHANGE_BYTES * changes + MOVE_BYTES * moves
        stops += self._key_bytes[last]
        stops += stops % 2
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        data = b"".join([self._arena.read(start, stop) for start, stop in spans])
        lengths = stops - starts
        return np.frombuffer(data, np.uint8), np.cumsum(lengths) - lengths - starts

    def _counts(self, rows: Array) -> tuple[Array, Array]:
        """Returns the numbers of changes and moves, in a type in which sums do not overflow."""
        return self._changes[rows].astype(np.int64), self._moves[rows].astype(np.int64)

    def _put_on(self, canvas: Array, step: _Step) -> None:
        for sample, key in step.keys:
            canvas[sample] = inflate(key, self.pixels)
        if len(step.to_rows):
            rows = canvas.reshape(-1, self._shape[1])
            rows[step.to_rows] = rows[step.from_rows]
        canvas.reshape(-1)[step.places] = step.values

    def _make_room(self, start: int) -> None:
        """Drops the oldest chains until one more frame at `start` fits both limits."""
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


def _ranges(starts: Array, counts: Array) -> Array:
    """Returns start, start + 1, …, `count` numbers each, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Array = np.repeat(starts - (ends - counts), counts) + np.arange(total)
    return ranges


def _before(counts: Array) -> Array:
    """Returns the sum before each, and the total."""
    return np.concatenate([[0], np.cumsum(counts)])


def _slices(bounds: Array) -> list[slice]:
    return [slice(start, stop) for start, stop in pairwise(bounds.tolist())]


def _show(k: int, pixels: Array, words: Array, where: Array | slice) -> None:
    """Puts pixels, or rows of them, into the bytes of their words that show frame k and later."""
    shown = np.multiply(pixels[where], _FROM_ON[k], dtype="<u4")
    shown |= words[where] & _BEFORE[k]
    words[where] = shown
