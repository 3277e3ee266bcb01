"""Messages above the packet limit: cut into parts, and put together again under a digest.

A part is itself a message (kind "part"): one uint8 tensor, and which part of which whole it is.
An `Assembler` takes parts in any order, twice, and mixed with those of an older message, as
retained topics deliver them. It holds no more than was received, and begins a message only if
there is room for all of it: `limit` bytes for one, `held_limit` for all. So what was begun can be
finished however many send at once; the others are not heard, and send again later. A message that
nothing has come of for a long time makes room.
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
ROOM = 512  # bytes; the header of a part
SMALLEST = 4096  # bytes; smaller packets than this are more header than message
_WHOLES_OF_A_TOPIC = 2  # the retained one and the one that is replacing it
_ABANDONED = 1000  # parts of others, after which a message is taken to be given up
_KEEPING = 1024  # bytes; what Python needs to keep a piece, however small, generously


def split(payload: bytes, packet_bytes: int) -> Iterator[bytes]:
    """Parts of `payload`, none larger than `packet_bytes`."""
    size = packet_bytes - ROOM
    count = -(-len(payload) // size)
    whole = {"digest": hashlib.sha256(payload).hexdigest(), "bytes": len(payload), "count": count}
    for index in range(count):
        piece = np.frombuffer(
            payload, np.uint8, min(size, len(payload) - index * size), index * size
        )
        yield encode(KIND, {**whole, "index": index}, {"part": piece})


@dataclass
class _Whole:
    """A message of which some parts have come."""

    count: int
    size: int
    room: int  # bytes of memory, once all of it is there
    touched: int  # the number of the part that came last
    pieces: dict[int, bytes] = field(default_factory=dict)
    received: int = 0  # bytes in the pieces

    def put(self, index: int, piece: bytes) -> None:
        self.received += len(piece) - len(self.pieces.get(index, b""))
        self.pieces[index] = piece


class Assembler:
    """Puts messages together, topic by topic."""

    def __init__(self, *, limit: int, held_limit: int) -> None:
        self._limit = limit
        self._held_limit = held_limit
        self._reserved = 0  # bytes
        self._parts = 0  # that have come so far
        # By topic and digest, each touched longest ago first.
        self._topics: OrderedDict[str, OrderedDict[str, _Whole]] = OrderedDict()

    def add(self, topic: str, packet: bytes) -> bytes | None:
        """The message, once this part completes it; `WireError` if the part is none."""
        digest, index, count, size, piece = self._read(packet)
        self._parts += 1
        whole = self._find(topic, digest) or self._begin(topic, digest, count, size)
        if whole is None:
            return None
        whole.put(index, piece)
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

    def _read(self, packet: bytes) -> tuple[str, int, int, int, bytes]:
        envelope = decode(packet, limit=self._limit + ROOM)
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
                if size > self._limit:
                    raise Oversized(f"a message has {size} bytes; at most {self._limit} are taken.")
                if count > 1 + size // (SMALLEST - ROOM):
                    raise WireError("a message has more parts than its size needs.")
                return digest, i, count, size, piece.tobytes()
        raise WireError("this is no part of a message.")

    def _find(self, topic: str, digest: str) -> _Whole | None:
        wholes = self._topics.get(topic, OrderedDict())
        if (whole := wholes.get(digest)) is not None:
            whole.touched = self._parts
            wholes.move_to_end(digest)
            self._topics.move_to_end(topic)
        return whole

    def _begin(self, topic: str, digest: str, count: int, size: int) -> _Whole | None:
        """Room for a message, or None if those that were begun need all there is."""
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
