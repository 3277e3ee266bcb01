"""Simulates a slow and lossy link around any transport, to study what a round costs.

Each way by itself, a packet of n bytes that is sent at t arrives at

    max(t, free) + 8·n / (1000·bandwidth_kbps) + latency      (seconds)

where `free` is when the packet before it had left. A lost packet takes its time on the link too.
Up, to the broker, a lost packet is never delivered, as if the broker had acknowledged and then
dropped it: a sender that waits for an answer sends again. Down, the broker keeps what was not
acknowledged (QoS 1) and sends it again, and what follows waits behind it: θ_shared and the
aggregator's state are published once, and only the broker can repeat them.

There is no thread here: the simulation advances when its user publishes, receives or flushes. A
published packet starts at once, also while its user is busy; a packet from the broker starts when
its user first looks for packets.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from broker.errors import TransportError
from broker.transport.mqtt_rules import check_topic, packet_bytes
from broker.transport.transport import Event, Packet, QueueLimits, Transport

RETRANSMIT_SECONDS = 1.0  # until a packet that was lost down is sent again; as TCP at first
_LOOK_SECONDS = 0.005  # between two looks for packets from the broker
_PRECISION = 1e-6  # seconds; the sum of a clock and a duration is not exact


class Lane:
    """One direction of a link: it carries one packet after the other."""

    def __init__(self, *, bandwidth_kbps: float, latency_seconds: float) -> None:
        self._bits_per_second = 1000.0 * bandwidth_kbps
        self._latency_seconds = latency_seconds
        self.free = 0.0  # when the last packet has left

    def carry(self, now: float, size: int) -> float:
        """Returns when a packet of `size` bytes arrives that may leave from `now` on."""
        self.free = max(now, self.free) + 8 * size / self._bits_per_second
        return self.free + self._latency_seconds


@dataclass(frozen=True)
class _Up:
    """A packet on its way to the broker."""

    arrives: float
    topic: str
    payload: bytes
    retain: bool
    lost: bool


@dataclass(frozen=True)
class _Down:
    """An event on its way from the broker."""

    arrives: float
    event: Event
    size: int  # payload bytes


class SimulatedLink:
    """A transport behind a simulated link; which packets are lost follows from `seed` alone."""

    def __init__(
        self,
        transport: Transport,
        *,
        bandwidth_kbps: float,
        latency_seconds: float = 0.0,
        loss: float = 0.0,
        seed: int | str = 0,
        limits: QueueLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`loss` is the share of packets that are lost in each direction."""
        if not bandwidth_kbps > 0:
            raise TransportError("the bandwidth of a simulated link must be above 0 kbps.")
        if not 0 <= latency_seconds < float("inf"):
            raise TransportError("the latency of a simulated link must be 0 s or more.")
        if not 0 <= loss < 1:
            raise TransportError("the loss of a simulated link must be at least 0 and below 1.")
        self.lost = 0  # packets, in both directions
        self._transport = transport
        self._loss = loss
        self._limits = limits or QueueLimits()
        self._clock = clock
        self._sleep = sleep
        self._up_lane, self._down_lane = (
            Lane(bandwidth_kbps=bandwidth_kbps, latency_seconds=latency_seconds) for _ in range(2)
        )
        # One for each direction, so that losses up do not depend on the packets down.
        self._up_luck, self._down_luck = (random.Random(f"{seed}/{way}") for way in ("up", "down"))
        self._up: deque[_Up] = deque()
        self._down: deque[_Down] = deque()
        self._up_bytes = self._down_bytes = 0
        self._lost_up_bytes = 0
        self._full = 0  # packets that did not fit in the queue up
        self._published = self._moved = 0  # numbers of packets that entered and left the queue up
        self._incomplete = False  # a packet was lost or dropped since the last flush
        self._closed = False
        self._lock = threading.RLock()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        check_topic(topic)
        with self._lock:
            self._move_up()
            if (
                len(self._up) >= self._limits.outbox_packets
                or self._up_bytes + len(payload) > self._limits.outbox_bytes
            ):
                self._full += 1
                self._incomplete = True
                return
            arrives = self._up_lane.carry(self._clock(), packet_bytes(topic, len(payload)))
            lost = self._up_luck.random() < self._loss
            self._up.append(_Up(arrives, topic, payload, retain, lost))
            self._up_bytes += len(payload)
            self._published += 1

    def receive(self, timeout: float) -> Event | None:
        until = self._clock() + timeout
        while True:
            with self._lock:
                self._move_up()
                self._take_down()
                if self._down and (self._is_due(self._down[0]) or self._closed):
                    arrived = self._down.popleft()
                    self._down_bytes -= arrived.size
                    return arrived.event
            if self._closed or not self._rest(until):
                return None

    def flush(self, timeout: float) -> bool:
        """Returns False also if a packet was lost or dropped since the last flush."""
        until = self._clock() + timeout
        last = self._published
        while True:
            with self._lock:
                self._move_up()
                if self._moved >= last:
                    complete, self._incomplete = not self._incomplete, False
                    break
            if self._closed or not self._rest(until):
                return False
        return self._transport.flush(max(0.0, until - self._clock())) and complete

    def close(self) -> None:
        """Closes the link; packets that are still on their way up are lost."""
        self._closed = True
        self._transport.close()

    @property
    def sent_bytes(self) -> int:
        return self._transport.sent_bytes + self._lost_up_bytes

    @property
    def received_bytes(self) -> int:
        return self._transport.received_bytes

    @property
    def dropped(self) -> int:
        return self._transport.dropped + self._full

    def _is_due(self, item: _Up | _Down) -> bool:
        return item.arrives <= self._clock() + _PRECISION

    def _move_up(self) -> None:
        """Publishes the packets that have arrived at the broker."""
        while self._up and self._is_due(self._up[0]) and not self._closed:
            item = self._up.popleft()
            self._up_bytes -= len(item.payload)
            self._moved += 1
            if item.lost:
                self.lost += 1
                self._lost_up_bytes += len(item.payload)
                self._incomplete = True
            else:
                self._transport.publish(item.topic, item.payload, retain=item.retain)

    def _take_down(self) -> None:
        """Starts packets that the broker has sent; those that do not fit stay in the transport."""
        while (
            len(self._down) < self._limits.inbox_packets
            and self._down_bytes < self._limits.inbox_bytes
            and (event := self._transport.receive(0.0)) is not None
        ):
            now = self._clock()
            size = 0
            if isinstance(event, Packet):
                size = len(event.payload)
                arrives = self._carry_down(now, packet_bytes(event.topic, size))
            else:  # not a packet, but it must not overtake one
                arrives = max(now, self._down[-1].arrives) if self._down else now
            self._down.append(_Down(arrives, event, size))
            self._down_bytes += size

    def _carry_down(self, now: float, size: int) -> float:
        arrives = self._down_lane.carry(now, size)
        while self._down_luck.random() < self._loss:
            self.lost += 1
            arrives = self._down_lane.carry(self._down_lane.free + RETRANSMIT_SECONDS, size)
        return arrives

    def _rest(self, until: float) -> bool:
        """Sleeps until there may be something to do; returns False if `until` is over."""
        now = self._clock()
        left = until - now
        if left <= _PRECISION:
            return False
        with self._lock:
            due = [queue[0].arrives - now for queue in (self._up, self._down) if queue]
        self._sleep(max(_PRECISION, min(left, _LOOK_SECONDS, *due)))
        return True
