"""A transport that carries messages of any size: whole if they fit, otherwise in parts.

A message on TOPIC that does not fit in a packet goes out in parts, part i on TOPIC/i, so that a
retained message stays retained part by part. No other topic ends in a number.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.errors import Oversized, WireError
from broker.protocol.parts import SMALLEST, Assembler, split
from broker.transport.mqtt_rules import PACKET_ROOM
from broker.transport.transport import Connected, Disconnected, Packet, Transport, Will

PART_BYTES = 900_000  # below 1 MB, the limit of cautious brokers
_PARTS_AT_ONCE = 64


@dataclass(frozen=True)
class Message:
    """A complete message; `retained` as of a packet."""

    topic: str
    payload: bytes
    retained: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Broken:
    """Something arrived that is not a message, or larger than any message."""

    topic: str
    error: WireError


Event = Message | Broken | Connected | Disconnected


class OpenChannel(Protocol):
    """Opens the channel of a member of a fleet; `limit` is the most bytes that a message may have.

    The transport behind it may be MQTT, the broker in memory, or one that a test brings.
    """

    def __call__(
        self, *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel: ...


class Channel:
    """Sends and receives messages over a transport; `limit` is the most bytes of a message."""

    def __init__(
        self,
        transport: Transport,
        *,
        limit: int,
        part_bytes: int = PART_BYTES,
        held_limit: int,
    ) -> None:
        self.transport = transport
        self._limit = limit
        self._part_bytes = max(SMALLEST, part_bytes)  # receivers refuse smaller parts
        self._packet_bytes = self._part_bytes
        self._assembler = Assembler(limit=limit, held_limit=max(held_limit, 2 * limit))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if len(payload) <= self._packet_bytes:
            self.transport.publish(topic, payload, retain=retain)
            return
        for index, part in enumerate(split(payload, self._packet_bytes)):
            self.transport.publish(f"{topic}/{index}", part, retain=retain)

    def receive(self, timeout: float) -> Event | None:
        """Returns the next event, or None if there is none within `timeout` seconds.

        A part that completes no message is not an event. After many of them None is returned as
        well, so that a sender of parts cannot keep the caller here.
        """
        deadline, left = time.monotonic() + timeout, timeout
        for _ in range(_PARTS_AT_ONCE):
            event = self.transport.receive(left)
            match event:
                case Packet(topic, payload, retained):
                    if (arrived := self._take(topic, payload, retained)) is not None:
                        return arrived
                    left = max(0.0, deadline - time.monotonic())
                    continue
                case Connected(largest):
                    fits = self._part_bytes if largest is None else largest - PACKET_ROOM
                    self._packet_bytes = max(SMALLEST, min(self._part_bytes, fits))
            return event
        return None

    def close(self) -> None:
        self.transport.close()

    def _take(self, topic: str, payload: bytes, retained: bool) -> Message | Broken | None:
        whole, _, last = topic.rpartition("/")
        is_part = last.isascii() and last.isdigit()
        try:
            if is_part:
                assembled = self._assembler.add(whole, payload)
                return None if assembled is None else Message(whole, assembled, retained)
            if len(payload) > self._limit:
                raise Oversized(
                    f"a message has {len(payload)} bytes; at most {self._limit} are taken."
                )
        except WireError as error:
            return Broken(whole if is_part else topic, error)
        return Message(topic, payload, retained)
