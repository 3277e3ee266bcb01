"""Messages above the packet limit: cut into parts, and put together again under a digest.

A part is itself a message (kind "part"): one uint8 tensor, and which part of which whole it is.
An `Assembler` takes parts in any order, twice, and mixed with those of an older message, as
retained topics deliver them. Of one message it holds at most the bytes that this claims to have,
which are at most `limit`, and of all messages at most `held_limit` bytes of memory; beyond that
the message touched longest ago is forgotten, and its sender sends it again. The newest is kept.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from broker.wire import Oversized, WireError, decode, encode

KIND = "part"
ROOM = 512  # bytes; the header of a part
SMALLEST = 4096  # bytes; smaller packets than this are more header than message
_WHOLES_OF_A_TOPIC = 2  # the retained one and the one that is replacing it
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
    overhead: int  # bytes of memory for each piece, besides the piece itself
    pieces: dict[int, bytes] = field(default_factory=dict)
    received: int = 0  # bytes in the pieces

    @property
    def held(self) -> int:
        """Bytes of memory."""
        return self.received + self.overhead * len(self.pieces)

    def put(self, index: int, piece: bytes) -> None:
        self.received += len(piece) - len(self.pieces.get(index, b""))
        self.pieces[index] = piece


_Key = tuple[str, str]  # topic and digest


class Assembler:
    """Puts messages together, topic by topic."""

    def __init__(self, *, limit: int, held_limit: int) -> None:
        self._limit = limit
        self._held_limit = held_limit
        self._held = 0
        self._wholes: OrderedDict[_Key, _Whole] = OrderedDict()  # touched longest ago first

    def add(self, topic: str, packet: bytes) -> bytes | None:
        """The message, once this part completes it; `WireError` if the part is none."""
        digest, index, count, size, piece = self._read(packet)
        key = (topic, digest)
        whole = self._wholes.get(key) or self._begin(key, count, size)
        self._wholes.move_to_end(key)
        self._held -= whole.held
        whole.put(index, piece)
        self._held += whole.held
        if (count, size) != (whole.count, whole.size) or whole.received > size:
            self._drop(key)
            raise WireError("a part contradicts the others of its message.")
        while self._held > self._held_limit and len(self._wholes) > 1:
            self._drop(next(iter(self._wholes)))
        if len(whole.pieces) < count:
            return None
        self._drop(key)
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

    def _begin(self, key: _Key, count: int, size: int) -> _Whole:
        topic, _ = key
        of_topic = [other for other in self._wholes if other[0] == topic]
        for other in of_topic[: 1 - _WHOLES_OF_A_TOPIC]:
            self._drop(other)
        whole = self._wholes[key] = _Whole(count, size, _KEEPING + len(topic))
        return whole

    def _drop(self, key: _Key) -> None:
        self._held -= self._wholes.pop(key).held
