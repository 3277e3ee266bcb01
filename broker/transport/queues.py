"""The two bounded queues between an application and the network; both are thread-safe."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace

from broker.transport.mqtt_rules import LARGEST_PACKET, packet_bytes
from broker.transport.transport import Disconnected, Event, Packet, QueueLimits

WINDOW_BYTES = 2 * 2**20  # unacknowledged; a slow link can send it within the keepalive
GIVE_UP_AFTER = 5  # lost links with the same oldest packet on the wire: that packet is dropped


class Inbox:
    """Events that were not read yet; limited in the number and the bytes of packets."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._events: deque[Event] = deque()
        self._packets = 0
        self._bytes = 0
        self._closed = False
        self._gap = False  # whether the last packet was dropped
        self._changed = threading.Condition()
        self.received_bytes = 0
        self.dropped = 0

    def put(self, event: Event) -> None:
        with self._changed:
            if isinstance(event, Packet):
                size = len(event.payload)
                self.received_bytes += size
                if (
                    self._packets >= self._limits.inbox_packets
                    or self._bytes + size > self._limits.inbox_bytes
                ):
                    self.dropped += 1
                    self._gap = True
                    return
                self._packets += 1
                self._bytes += size
                if self._gap:
                    event, self._gap = replace(event, after_gap=True), False
            elif isinstance(event, Disconnected) and isinstance(self._newest(), Disconnected):
                self._events.pop()  # only the newest reason is of interest
            self._events.append(event)
            self._changed.notify()

    def get(self, timeout: float) -> Event | None:
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._closed, timeout)
            if not self._events:
                return None
            event = self._events.popleft()
            if isinstance(event, Packet):
                self._packets -= 1
                self._bytes -= len(event.payload)
            return event

    def close(self) -> None:
        """Ends waiting for events; those that arrived before can still be read."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _newest(self) -> Event | None:
        return self._events[-1] if self._events else None


@dataclass(frozen=True, eq=False)
class Outgoing:
    """A packet that the broker has not acknowledged."""

    number: int  # in order of publication
    topic: str
    payload: bytes
    retain: bool


class Outbox:
    """Packets that are not acknowledged yet, oldest first; limited in number and bytes."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._added = -1  # the newest packet's number
        self._waiting: deque[Outgoing] = deque()
        self._on_the_wire: dict[int, Outgoing] = {}  # by number, oldest first
        self._bytes = 0
        self._wire_bytes = 0
        # The oldest packet on the wire when links were lost, and the number of such losses.
        self._losses = (-1, 0)
        self._suspected = -1  # one of the packets up to this number may end links
        self._dropped_since_flush = False
        self._closed = False
        self._changed = threading.Condition()
        self.dropped = 0

    def add(self, topic: str, payload: bytes, *, retain: bool) -> None:
        with self._changed:
            self._added += 1
            if (
                self._closed
                or len(self._waiting) + len(self._on_the_wire) >= self._limits.outbox_packets
                or self._bytes + len(payload) > self._limits.outbox_bytes
                or packet_bytes(topic, len(payload)) > LARGEST_PACKET
            ):
                self._note_drop()
                return
            self._waiting.append(Outgoing(self._added, topic, payload, retain))
            self._bytes += len(payload)

    def take(self, window: int, max_packet_bytes: int | None) -> Outgoing | None:
        """Returns the next packet to send, or None if none may be sent now.

        `window` is the largest number of unacknowledged packets. A packet that is larger than the
        broker accepts would end every link on which it is sent, so it is dropped here.
        """
        with self._changed:
            while self._waiting:
                item = self._waiting[0]
                size = len(item.payload)
                if packet_bytes(item.topic, size) > (max_packet_bytes or LARGEST_PACKET):
                    self._drop_oldest_waiting()
                    continue
                allowed = 1 if self._oldest() <= self._suspected else window
                if self._on_the_wire and (
                    len(self._on_the_wire) >= allowed or self._wire_bytes + size > WINDOW_BYTES
                ):
                    return None
                self._on_the_wire[item.number] = self._waiting.popleft()
                self._wire_bytes += size
                return item
            return None

    def acknowledge(self, item: Outgoing, *, refused: bool = False) -> None:
        with self._changed:
            if self._on_the_wire.pop(item.number, None) is not None:
                self._wire_bytes -= len(item.payload)
                self._bytes -= len(item.payload)
                if refused:
                    self._note_drop()
                self._changed.notify_all()

    def link_lost(self) -> None:
        """Puts the packets that were on the wire back to the front of the queue.

        A broker that announces no limit closes the connection at a packet that is too large, every
        time. So these packets are then sent one at a time, and one that ended several links is
        dropped.
        """
        with self._changed:
            if not self._on_the_wire:
                return
            self._suspected = max(self._suspected, *self._on_the_wire)
            oldest, (suspect, losses) = min(self._on_the_wire), self._losses
            self._losses = (oldest, losses + 1 if oldest == suspect else 1)
            self._waiting.extendleft(reversed(self._on_the_wire.values()))
            self._on_the_wire.clear()
            self._wire_bytes = 0
            if self._losses[1] >= GIVE_UP_AFTER:
                self._drop_oldest_waiting()

    def flush(self, timeout: float) -> bool:
        """Returns whether all packets so far are acknowledged within `timeout` seconds.

        Returns False as well if a packet was dropped since the last flush.
        """
        with self._changed:
            last = self._added
            self._changed.wait_for(lambda: self._closed or self._oldest() > last, timeout)
            complete = self._oldest() > last and not self._dropped_since_flush
            self._dropped_since_flush = False
            return complete

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _oldest(self) -> float:
        waiting = self._waiting[0].number if self._waiting else float("inf")
        return min(waiting, min(self._on_the_wire, default=waiting))

    def _drop_oldest_waiting(self) -> None:
        item = self._waiting.popleft()
        self._bytes -= len(item.payload)
        self._note_drop()
        self._changed.notify_all()

    def _note_drop(self) -> None:
        self.dropped += 1
        self._dropped_since_flush = True
