"""A link that is slow, far and lossy, around any transport: what a round costs can be studied.

Each way by itself, a packet of n bytes that is sent at t arrives at

    max(t, free) + 8·n / (1000·bandwidth_kbps) + latency      (seconds)

where `free` is the moment at which the packet before it was out. What is lost takes its time on
the link too. On its way up a lost packet is never delivered, as if the broker had acknowledged
and then dropped it: whoever waits for an answer sends again. On its way down the broker keeps
what was not acknowledged (QoS 1) and sends it again, and what follows waits behind it: θ_shared
and the aggregator's state are published once, and only the broker can repeat them.

There is no thread here: the link moves whenever its user publishes, receives or flushes. What was
published goes on its way at once, also while its user is busy; what has come from the broker is
on its way from the moment it is first looked for.
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

RETRANSMIT_SECONDS = 1.0  # until what was lost on its way down comes again; TCP starts from this
_LOOK_SECONDS = 0.005  # between two looks at what has come from the broker
_PRECISION = 1e-6  # seconds; the sum of a clock and a duration is not exact


class Lane:
    """One way of a link: one packet after the other."""

    def __init__(self, *, bandwidth_kbps: float, latency_seconds: float) -> None:
        self._bits_per_second = 1000.0 * bandwidth_kbps
        self._latency_seconds = latency_seconds
        self.free = 0.0  # when the last packet was out

    def carry(self, now: float, size: int) -> float:
        """When a packet of `size` bytes arrives that may leave from `now` on."""
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
        """`loss` is the part of packets that are lost, each way."""
        if not bandwidth_kbps > 0:
            raise TransportError("the bandwidth of a simulated link must be above 0 kbps.")
        if not 0 <= latency_seconds < float("inf"):
            raise TransportError("the latency of a simulated link must be 0 s or more.")
        if not 0 <= loss < 1:
            raise TransportError("the loss of a simulated link must be at least 0 and below 1.")
        self.lost = 0  # packets, both ways
        self._transport = transport
        self._loss = loss
        self._limits = limits or QueueLimits()
        self._clock = clock
        self._sleep = sleep
        self._up_lane, self._down_lane = (
            Lane(bandwidth_kbps=bandwidth_kbps, latency_seconds=latency_seconds) for _ in range(2)
        )
        # One for each way, so that what is lost up does not depend on what has come down.
        self._up_luck, self._down_luck = (random.Random(f"{seed}/{way}") for way in ("up", "down"))
        self._up: deque[_Up] = deque()
        self._down: deque[_Down] = deque()
        self._up_bytes = self._down_bytes = 0
        self._lost_up_bytes = 0
        self._full = 0  # packets that found no room on their way up
        self._published = self._moved = 0  # packets that were put on their way up, and off it
        self._incomplete = False  # something did not get up since the last flush
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
        """Not complete, if something was lost or found no room since the last flush."""
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
        """What is still on its way up does not arrive any more."""
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
        """Gives the broker what has arrived there."""
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
        """Puts what the broker has sent on its way; what finds no room waits in the transport."""
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
            else:  # no packet, but nothing overtakes
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
        """Sleeps until there may be something to do; whether there is time left before `until`."""
        now = self._clock()
        left = until - now
        if left <= _PRECISION:
            return False
        with self._lock:
            due = [queue[0].arrives - now for queue in (self._up, self._down) if queue]
        self._sleep(max(_PRECISION, min(left, _LOOK_SECONDS, *due)))
        return True
