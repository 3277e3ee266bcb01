"""How one frame is stored: as the changes from the frame before, as a key, or as both.

Changes are n places (uint16, little-endian), m moves (uint8 to, uint8 from) and n values (uint8).
A move copies a whole row of the frame before to another height: where a game scrolls, it replaces
many changes. Then the pixels at the places get the values. A key is a whole frame under raw
deflate. There is one at least every `CHAIN` frames, so that showing any frame takes one inflation
and fewer than `CHAIN` changes. Where changes would be long, a key is stored without them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from firmware_sim.tensor_spec import Array

CHAIN = 8  # frames from a key to the next, at most
MOST_ROWS = 2**8  # of a frame: moves are uint8
MOST_PIXELS = 2**13  # of a frame: places are uint16, and deflate's window is this long
CHANGE_BYTES = 3  # a place and a value
MOVE_BYTES = 2
# Fixed codes are inflated in about two thirds of the time, for up to 9 % more bytes: a frame is so
# short that reading tables of codes of its own takes long.
_LEVEL, _STRATEGY = 6, zlib.Z_FIXED
_WINDOW = -13  # log₂ of deflate's window in bytes; negative for neither header nor checksum
_MOST_OF_KEY = 1.5  # changes with this many times the bytes of a key take as long as its inflation
_FEW = 150  # changed pixels, for which moves are not worth looking for


@dataclass(frozen=True)
class Record:
    """A frame as it is stored."""

    content: bytes  # places, moves and values, then the key
    changes: int = 0
    moves: int = 0
    key_bytes: int = 0


class Encoder:
    """Encodes the frames of a game, one after the other."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._newest = np.zeros(shape[0] * shape[1], np.uint8)
        self._last_key_bytes = 0  # 0: no frame was encoded yet
        self._since_key = 0  # frames

    def encode(self, pixels: Array) -> Record:
        record = self._encode(pixels)
        self._since_key = 0 if record.key_bytes else self._since_key + 1
        self._newest = pixels.copy()
        return record

    def _encode(self, pixels: Array) -> Record:
        places, moves = np.flatnonzero(pixels != self._newest), b""
        if len(places) > _FEW:
            moved, found = self._moved(pixels)
            left = np.flatnonzero(pixels != moved)
            if 2 * len(left) < len(places):  # moves take time when they are shown
                places, moves = left, found
        changes = places.astype("<u2").tobytes() + moves + pixels[places].tobytes()
        longest = min(_MOST_OF_KEY * self._last_key_bytes, longest_changes(len(pixels)))
        related = self._last_key_bytes > 0 and len(changes) <= longest
        if related and self._since_key + 1 < CHAIN:
            return Record(changes, len(places), len(moves) // MOVE_BYTES)
        deflate = zlib.compressobj(_LEVEL, wbits=_WINDOW, strategy=_STRATEGY)
        key = deflate.compress(pixels.data) + deflate.flush()
        self._last_key_bytes = len(key)
        if not related:
            return Record(key, key_bytes=len(key))
        return Record(changes + key, len(places), len(moves) // MOVE_BYTES, len(key))

    def _moved(self, pixels: Array) -> tuple[Array, bytes]:
        """Returns the newest frame with rows moved to look more like `pixels`, and the moves."""
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


def inflate(key: memoryview, pixels: int) -> Array:
    """Returns the pixels of a frame that is stored as a key."""
    return np.frombuffer(zlib.decompress(key, _WINDOW, pixels), np.uint8)


def longest_key(pixels: int) -> int:
    """Bytes of a frame that does not compress: deflate's stored blocks have short headers."""
    return pixels + 16


def longest_changes(pixels: int) -> int:
    """Few enough bytes that changes, with a key every CHAIN frames, never exceed keys alone."""
    return pixels // 2
