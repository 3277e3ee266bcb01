"""Messages above the packet limit: cut into parts, and put together again under a digest.

A part is itself a message (kind "part"): one uint8 tensor, and which part of which whole it is.
An `Assembler` takes parts in any order, twice, and mixed with those of an older message, as
retained topics deliver them. It holds no more than was received, and at most `limit` bytes of
one message and `held_limit` of all; beyond that the message touched longest ago is forgotten,
and its sender sends it again.
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
    pieces: dict[int, bytes] = field(default_factory=dict)

    @property
    def held(self) -> int:
        return sum(map(len, self.pieces.values()))


class Assembler:
    """Puts messages together, topic by topic."""

    def __init__(self, *, limit: int, held_limit: int) -> None:
        self._limit = limit
        self._held_limit = held_limit
        self._wholes: OrderedDict[tuple[str, str], _Whole] = OrderedDict()  # by topic and digest

    def add(self, topic: str, packet: bytes) -> bytes | None:
        """The message, once this part completes it; `WireError` if the part is none."""
        digest, index, count, size, piece = self._read(packet)
        key = (topic, digest)
        whole = self._wholes.setdefault(key, _Whole(count, size))
        self._wholes.move_to_end(key)
        if (count, size) != (whole.count, whole.size):
            del self._wholes[key]
            raise WireError("a part contradicts the others of its message.")
        whole.pieces[index] = piece
        self._forget(topic)
        if len(whole.pieces) < whole.count or key not in self._wholes:
            return None
        del self._wholes[key]
        payload = b"".join(whole.pieces[i] for i in range(whole.count))
        if len(payload) != size or hashlib.sha256(payload).hexdigest() != digest:
            raise WireError("the parts of a message do not add up to its digest.")
        return payload

    def _read(self, packet: bytes) -> tuple[str, int, int, int, bytes]:
        envelope = decode(packet, limit=self._limit + ROOM)
        match (envelope.kind, envelope.fields, envelope.tensors):
            case (
                "part",
                {"digest": str(digest), "index": int(i), "count": int(count), "bytes": int(size)},
                {"part": piece},
            ) if piece.dtype == np.uint8 and piece.size and len(digest) == 64 and 0 <= i < count:
                if size > self._limit:
                    raise Oversized(f"a message has {size} bytes; at most {self._limit} are taken.")
                if count > 1 + size // (SMALLEST - ROOM):
                    raise WireError("a message has more parts than its size needs.")
                return digest, i, count, size, piece.tobytes()
        raise WireError("this is no part of a message.")

    def _forget(self, topic: str) -> None:
        of_topic = [key for key in self._wholes if key[0] == topic]
        for key in of_topic[:-_WHOLES_OF_A_TOPIC]:
            del self._wholes[key]
        while sum(whole.held for whole in self._wholes.values()) > self._held_limit:
            self._wholes.popitem(last=False)
