"""A broker and its clients in one process, for experiments: no sockets and no threads.

It does what a real broker does for QoS 1: retained messages, wildcards, persistent sessions, wills,
outages, a largest packet. A packet is in every inbox before `publish` returns, so in one thread the
order is the same every time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.transport.mqtt_rules import check_filters, check_topic, matches
from broker.transport.queues import Inbox, Outbox
from broker.transport.transport import Connected, Disconnected, Event, Packet, QueueLimits, Will

QUEUED_PACKETS = 1_000  # per client that is away; mosquitto's default too


@dataclass
class _Session:
    """What the broker keeps for a client id, also while the client is away."""

    subscriptions: tuple[str, ...] = ()
    queue: deque[Packet] = field(default_factory=deque)
    client: MemoryTransport | None = None


class MemoryBroker:
    """A broker that runs from the start; one lock protects it and all its clients."""

    def __init__(self, *, max_packet_bytes: int | None = None) -> None:
        self.max_packet_bytes = max_packet_bytes
        self.dropped = 0  # packets that did not fit in the queue of a client that was away
        self._lock = threading.Lock()
        self._running = True
        self._sessions: dict[str, _Session] = {}
        self._retained: dict[str, bytes] = {}
        self._clients: list[MemoryTransport] = []  # not closed, in the order of their creation

    def stop(self, *, forget: bool = False) -> None:
        """Begins an outage, in which no will is sent.

        `forget` drops sessions and retained messages, as a broker without persistence does.
        """
        with self._lock:
            self._running = False
            for client in self._clients:
                if client._connected:
                    client._lose_link("the broker stopped.")
            for session in self._sessions.values():
                session.client = None
            if forget:
                self._sessions.clear()
                self._retained.clear()

    def start(self) -> None:
        """Ends an outage: all clients connect again."""
        with self._lock:
            self._running = True
            for client in list(self._clients):
                if not client._connected:
                    self._connect(client)

    def _connect(self, client: MemoryTransport) -> None:
        if client not in self._clients:
            self._clients.append(client)
        if not self._running:
            client._inbox.put(Disconnected("the broker is stopped.", final=False))
            return
        session = self._sessions.setdefault(client.client_id, _Session())
        if session.client is not None:
            who = f"another client with the id {client.client_id!r} connected."
            self._remove(session.client)
            session.client._lose_link(who, final=True)
        session.client, session.subscriptions = client, client._subscriptions
        client._connected = True
        client._inbox.put(Connected(self.max_packet_bytes))
        while session.queue:
            client._inbox.put(session.queue.popleft())
        for topic, payload in self._retained.items():
            if any(matches(name, topic) for name in session.subscriptions):
                client._inbox.put(Packet(topic, payload, retained=True))
        client._send_waiting()

    def _disconnect(self, client: MemoryTransport, *, clean: bool) -> None:
        self._remove(client)
        if not client._connected:
            return
        client._connected = False
        self._sessions[client.client_id].client = None
        if not clean and client._will is not None:
            self._route(client._will.topic, client._will.payload, retain=True)

    def _remove(self, client: MemoryTransport) -> None:
        if client in self._clients:
            self._clients.remove(client)

    def _route(self, topic: str, payload: bytes, *, retain: bool) -> None:
        if retain and payload:
            self._retained[topic] = payload
        elif retain:
            self._retained.pop(topic, None)
        packet = Packet(topic, payload)
        for session in self._sessions.values():
            if not any(matches(name, topic) for name in session.subscriptions):
                continue
            if session.client is not None:
                session.client._inbox.put(packet)
            elif len(session.queue) < QUEUED_PACKETS:
                session.queue.append(packet)
            else:
                self.dropped += 1


class MemoryTransport:
    """A client of a `MemoryBroker`; connects at once if the broker runs."""

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        client_id: str,
        subscriptions: Sequence[str] = (),
        will: Will | None = None,
        limits: QueueLimits | None = None,
    ) -> None:
        self.client_id = client_id
        self.sent_bytes = 0
        self._broker = broker
        self._lock = broker._lock
        self._subscriptions = check_filters(subscriptions)
        self._will = will
        limits = limits or QueueLimits()
        self._inbox = Inbox(limits)
        self._outbox = Outbox(limits)
        self._connected = False
        self._closed = False
        with self._lock:
            broker._connect(self)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        check_topic(topic)
        with self._lock:
            self._outbox.add(topic, payload, retain=retain)
            if self._connected:
                self._send_waiting()

    def receive(self, timeout: float) -> Event | None:
        return self._inbox.get(timeout)

    def flush(self, timeout: float) -> bool:
        return self._outbox.flush(timeout)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._broker._disconnect(self, clean=True)
                self._end()

    def drop(self) -> None:
        """Loses the link without a DISCONNECT: the broker sends the will."""
        with self._lock:
            if self._connected:
                self._broker._disconnect(self, clean=False)
                self._inbox.put(Disconnected("the link was lost.", final=False))

    def reconnect(self) -> None:
        """Connects again after `drop`, as a real client does by itself."""
        with self._lock:
            if not self._connected and not self._closed:
                self._broker._connect(self)

    @property
    def received_bytes(self) -> int:
        return self._inbox.received_bytes

    @property
    def dropped(self) -> int:
        return self._inbox.dropped + self._outbox.dropped

    def _send_waiting(self) -> None:
        while item := self._outbox.take(1, self._broker.max_packet_bytes):
            self.sent_bytes += len(item.payload)
            self._broker._route(item.topic, item.payload, retain=item.retain)
            self._outbox.acknowledge(item)

    def _lose_link(self, reason: str, *, final: bool = False) -> None:
        self._connected = False
        self._inbox.put(Disconnected(reason, final))
        if final:
            self._end()

    def _end(self) -> None:
        self._closed = True
        self._outbox.close()
        self._inbox.close()
