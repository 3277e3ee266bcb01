"""Messages above the packet limit: split into parts, assembled again and checked by a digest.

A part is itself a message (kind "part"): one uint8 tensor, and which part of which message it is.
An `Assembler` takes parts in any order, repeated, and mixed with those of an older message, as
retained topics deliver them. It holds no more than was received, and begins a message only if
there is room for all of it: `limit` bytes for one message, `held_limit` for all. So a message that
was begun can be completed, however many devices send at once; parts of the others are ignored, and
their devices send again later. A message of which no part has come for a long time is dropped when
its room is needed.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from broker.errors import Oversized, WireError
from broker.protocol.wire import decode, encode

KIND = "part"
ROOM = 512  # bytes for the header of a part
SMALLEST = 4096  # bytes of a packet; in a smaller one the header would take most of the room
_WHOLES_OF_A_TOPIC = 2  # the retained one and the one that is replacing it
_ABANDONED = 1000  # parts of other messages, after which a message may be dropped
_KEEPING = 1024  # bytes; an upper bound of what Python needs beside the bytes of a piece


def split(payload: bytes, packet_bytes: int) -> Iterator[bytes]:
    """Yields the parts of `payload`, none larger than `packet_bytes`."""
    size = packet_bytes - ROOM
    count = -(-len(payload) // size)
    whole = {"digest": hashlib.sha256(payload).hexdigest(), "bytes": len(payload), "count": count}
    for index in range(count):
        piece = np.frombuffer(
            payload, np.uint8, min(size, len(payload) - index * size), index * size
        )
        yield encode(KIND, {**whole, "index": index}, {"part": piece})


@dataclass(frozen=True)
class Part:
    """A part of a message of `size` bytes."""

    digest: str
    index: int
    count: int
    size: int
    piece: bytes


def read_part(packet: bytes, limit: int) -> Part:
    """Returns a part of a message of at most `limit` bytes; raises `WireError` if it is none."""
    envelope = decode(packet, limit=limit + ROOM)
    match (envelope.kind, envelope.fields, envelope.tensors):
        case (
            "part",
            {"digest": str(digest), "index": i, "count": count, "bytes": size},
            {"part": piece},
        ) if (
            all(type(n) is int for n in (i, count, size))  # to Python, true is an integer too
            and piece.dtype == np.uint8
            and len(digest) == 64
            and 0 <= i < count
            and 0 < piece.size <= size
        ):
            if size > limit:
                raise Oversized(f"a message has {size} bytes; at most {limit} are taken.")
            if count > 1 + size // (SMALLEST - ROOM):
                raise WireError("a message has more parts than its size needs.")
            return Part(digest, i, count, size, piece.tobytes())
    raise WireError("this is no part of a message.")


@dataclass
class _Whole:
    """A message of which some parts have arrived."""

    count: int
    size: int
    room: int  # bytes of memory that the complete message needs
    touched: int  # when its newest part arrived, as the number of parts received until then
    pieces: dict[int, bytes] = field(default_factory=dict)
    received: int = 0  # bytes in the pieces

    def put(self, index: int, piece: bytes) -> None:
        self.received += len(piece) - len(self.pieces.get(index, b""))
        self.pieces[index] = piece


class Assembler:
    """Assembles messages, topic by topic."""

    def __init__(self, *, limit: int, held_limit: int) -> None:
        self._limit = limit
        self._held_limit = held_limit
        self._reserved = 0  # bytes
        self._parts = 0  # received so far
        # By topic and digest; those whose newest part is oldest come first.
        self._topics: OrderedDict[str, OrderedDict[str, _Whole]] = OrderedDict()

    def add(self, topic: str, packet: bytes) -> bytes | None:
        """Returns the message if this part completes it; raises `WireError` if this is no part."""
        part = read_part(packet, self._limit)
        digest, index, count, size = part.digest, part.index, part.count, part.size
        self._parts += 1
        whole = self._find(topic, digest) or self._begin(topic, digest, count, size)
        if whole is None:
            return None
        whole.put(index, part.piece)
        if (count, size) != (whole.count, whole.size) or whole.received > size:
            self._drop(topic, digest)
            raise WireError("a part contradicts the others of its message.")
        if len(whole.pieces) < count:
            return None
        self._drop(topic, digest)
        payload = b"".join(whole.pieces[i] for i in range(count))
        if len(payload) != size or hashlib.sha256(payload).hexdigest() != digest:
            raise WireError("the parts of a message do not add up to its digest.")
        return payload

    def _find(self, topic: str, digest: str) -> _Whole | None:
        wholes = self._topics.get(topic, OrderedDict())
        if (whole := wholes.get(digest)) is not None:
            whole.touched = self._parts
            wholes.move_to_end(digest)
            self._topics.move_to_end(topic)
        return whole

    def _begin(self, topic: str, digest: str, count: int, size: int) -> _Whole | None:
        """Reserves room for a message; returns None if those that were begun need all of it."""
        room = size + count * (_KEEPING + len(topic))
        of_topic = self._topics.get(topic, OrderedDict())
        if len(of_topic) >= _WHOLES_OF_A_TOPIC:
            self._drop(topic, next(iter(of_topic)))
        while self._reserved and self._reserved + room > self._held_limit:
            oldest, wholes = next(iter(self._topics.items()))
            abandoned, whole = next(iter(wholes.items()))
            if self._parts - whole.touched < _ABANDONED:
                return None
            self._drop(oldest, abandoned)
        self._reserved += room
        whole = _Whole(count, size, room, self._parts)
        self._topics.setdefault(topic, OrderedDict())[digest] = whole
        self._topics.move_to_end(topic)
        return whole

    def _drop(self, topic: str, digest: str) -> None:
        wholes = self._topics[topic]
        self._reserved -= wholes.pop(digest).room
        if not wholes:
            del self._topics[topic]
