"""The contract of every transport: it moves packets, each with a topic and a payload.

A payload fits in one MQTT packet; `channel.py` splits larger messages above this layer. There are
two transports: `mqtt.MqttTransport` over a real broker, and `in_memory.MemoryTransport` within one
process. `simulated_link.SimulatedLink` wraps either of them in a slow and lossy link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Packet:
    """A packet that arrived; `retained`: the broker had it before this client subscribed."""

    topic: str
    payload: bytes
    retained: bool = field(default=False, compare=False)
    after_gap: bool = field(default=False, compare=False)  # those before it were dropped


@dataclass(frozen=True)
class Connected:
    """The link is up and the broker has confirmed every subscription; also after each outage.

    Packets that the broker kept for this client while it was away may arrive earlier.
    """

    max_packet_bytes: int | None  # the largest packet that the broker accepts; None: it did not say


@dataclass(frozen=True)
class Disconnected:
    """The link was lost, or could not be opened."""

    reason: str  # one sentence
    final: bool  # the transport has stopped trying, because trying again cannot help


Event = Packet | Connected | Disconnected


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when this client is lost without a DISCONNECT."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class QueueLimits:
    """The sizes of a transport's two queues; packets that do not fit are dropped."""

    inbox_packets: int = 10_000
    inbox_bytes: int = 64 * 2**20
    outbox_packets: int = 10_000
    outbox_bytes: int = 64 * 2**20


class Transport(Protocol):
    """Moves packets at least once, in order; every method may be called from any thread."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Queues a packet and returns at once; it stays in the outbox while there is no link."""

    def receive(self, timeout: float) -> Event | None:
        """Returns the next event, or None if there is none within `timeout` seconds."""

    def flush(self, timeout: float) -> bool:
        """Returns whether the broker acknowledged all packets within `timeout` seconds."""

    def close(self) -> None:
        """Disconnects, so that the will is not sent; may be called again."""

    @property
    def sent_bytes(self) -> int:
        """Number of payload bytes sent, repetitions included."""

    @property
    def received_bytes(self) -> int:
        """Number of payload bytes received, dropped packets included."""

    @property
    def dropped(self) -> int:
        """Number of packets that did not fit in the inbox, the outbox or the broker."""
