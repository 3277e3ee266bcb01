"""The contract of every transport: it moves packets, each with a topic and a payload.

A payload fits in one MQTT packet; `channel.py` splits larger messages above this layer. There are
two transports: `mqtt.MqttTransport` over a real broker, and `in_memory.MemoryTransport` within one
process. `simulated_link.SimulatedLink` wraps either of them in a slow and lossy link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Packet:
    """Something arrived."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Connected:
    """The link is up and the broker confirmed every subscription; comes again after each outage.

    What the broker kept for this client while it was away may arrive before it.
    """

    max_packet_bytes: int | None  # the largest whole packet that the broker takes, if it says so


@dataclass(frozen=True)
class Disconnected:
    """The link is down, or did not come up."""

    reason: str  # one sentence
    final: bool  # trying again cannot help, and the transport has stopped trying


Event = Packet | Connected | Disconnected


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when this client is lost without a goodbye."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class QueueLimits:
    """How much a transport holds in memory in each direction; what does not fit is dropped."""

    inbox_packets: int = 10_000
    inbox_bytes: int = 64 * 2**20
    outbox_packets: int = 10_000
    outbox_bytes: int = 64 * 2**20


class Transport(Protocol):
    """Moves packets at least once, in order; every method may be called from any thread."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Never waits; while there is no link, the packet waits in a bounded outbox."""

    def receive(self, timeout: float) -> Event | None:
        """The next event, or None when nothing came within `timeout` seconds."""

    def flush(self, timeout: float) -> bool:
        """Whether the broker acknowledged, within `timeout` seconds, all that was published."""

    def close(self) -> None:
        """Says goodbye, so that the will is not sent; may be called again."""

    @property
    def sent_bytes(self) -> int:
        """Payload bytes given to the network, repetitions included."""

    @property
    def received_bytes(self) -> int:
        """Payload bytes that came from the network, dropped ones included."""

    @property
    def dropped(self) -> int:
        """Packets that did not fit in the inbox, the outbox or the broker."""
