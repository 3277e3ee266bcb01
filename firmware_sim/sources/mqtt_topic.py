"""`mqtt:TOPIC`: windows of what sensors publish, on the fleet's broker or on another.

With + or # in TOPIC every topic is a sensor of its own, whose samples mix with no other's. No
window spans a lost link or dropped messages, and a sample that the broker retains is taken once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from broker.transport.address import Credentials, parse_address
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_rules import matches
from broker.transport.transport import Connected, Disconnected, Packet, QueueLimits
from firmware_sim.errors import SourceError
from firmware_sim.sources.decoding.message import BadMessage, Messages
from firmware_sim.sources.decoding.windows import Windows
from firmware_sim.sources.framing import Framing
from firmware_sim.sources.labels import NoLabel
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import MqttSettings, read_settings
from firmware_sim.sources.source import LateLabel, Malformed, Observation

WAIT_S = 0.5  # at most without a word that nothing comes
MOST_TOPICS = 256  # sensors that one device listens to
QUEUE = QueueLimits(inbox_packets=10_000, inbox_bytes=8 * 2**20, outbox_packets=1, outbox_bytes=1)
Event = Observation | LateLabel | Malformed | None


def open_mqtt(topic: str, request: Request) -> MqttSource:
    """Opens what follows `mqtt:`."""
    return MqttSource(topic, read_settings(MqttSettings, request.settings), request)


class MqttSource:
    """A client of a broker that only listens; it connects again after every lost link."""

    def __init__(self, topic: str, settings: MqttSettings, request: Request) -> None:
        if settings.label_topic and not settings.key:
            raise SourceError(
                "labels on a topic of their own need key in the settings: where a message "
                "says its name."
            )
        self._request = request
        self._label_topic = settings.label_topic
        channels = None if settings.whole_windows else len(settings.fields)
        # One field may hold a list with all channels.
        several = channels if channels and channels > 1 else None
        self._framing = Framing(settings, request, several)
        self._framing.check_labels(settings.labels)
        self._messages = Messages(
            settings, window=self._framing.window, channels=self._framing.channels
        )
        self._windows: dict[str, Windows] = {}  # by topic
        self._whole = settings.whole_windows
        self._closing = threading.Event()
        self._dropped = 0
        self._linked = self._lost = False  # whether there was a link, and whether one was lost
        try:
            self._transport = MqttTransport(
                parse_address(settings.broker or request.broker),
                client_id=f"{request.device}:source",
                subscriptions=[name for name in (topic, settings.label_topic) if name],
                credentials=_credentials(settings) if settings.broker else request.credentials,
                limits=QUEUE,
            )
        except ValueError as error:
            raise SourceError(f"mqtt:TOPIC names no topic of MQTT: {error}") from None

    def events(self) -> Iterator[Event]:
        said = time.monotonic()
        while not self._closing.is_set():
            found: list[Event] = []
            match self._transport.receive(WAIT_S):
                case Connected():
                    self._linked = True
                case Packet() as packet:
                    self._linked = True
                    found = self._take(packet)
                case Disconnected(reason, final):
                    if final:
                        raise SourceError(f"the source cannot be read: {reason}")
                    self._request.tell("source_waits", reason=reason)
                    self._lost = self._linked
                    self._restart()
            if (dropped := self._transport.dropped) > self._dropped:
                count, self._dropped = dropped - self._dropped, dropped
                found.append(Malformed(f"{count} messages came faster than they could be read."))
            if not found and time.monotonic() - said >= WAIT_S:
                found = [None]
            for event in found:
                yield event
                said = time.monotonic()

    @property
    def received_bytes(self) -> int:
        """Number of bytes that came, dropped messages included."""
        return self._transport.received_bytes

    def close(self) -> None:
        self._closing.set()
        self._transport.close()

    def _restart(self) -> None:
        for windows in self._windows.values():
            windows.restart()

    def _take(self, packet: Packet) -> list[Event]:
        if packet.after_gap:
            self._restart()
        try:
            if self._label_topic and matches(self._label_topic, packet.topic):
                key, labels = self._messages.read_label(packet.payload)
                if (target := self._framing.target(labels)) is None:
                    raise NoLabel("a message on the topic of labels has no label.")
                return [LateLabel(key, target)]
            if packet.retained and self._lost:  # it was taken, or is older than what comes
                return []
            reading = self._messages.read(packet.payload)
            label = self._framing.label(reading.labels)
            windows = self._windows_of(packet.topic)
            made = [windows.add(sample, label) for sample in reading.samples]
            return [self._framing.observation(w, reading.key) for w in made if w is not None]
        except (BadMessage, NoLabel) as error:
            return [Malformed(str(error))]

    def _windows_of(self, topic: str) -> Windows:
        if self._whole:
            return self._framing.windows()  # a window never spans two messages
        if topic not in self._windows:
            if len(self._windows) >= MOST_TOPICS:
                raise BadMessage(f"more than {MOST_TOPICS} topics have sent samples.")
            self._windows[topic] = self._framing.windows()
        return self._windows[topic]


def _credentials(settings: MqttSettings) -> Credentials:
    def path(text: str) -> Path | None:
        return Path(text) if text else None

    return Credentials(
        user=settings.user or None,
        password_file=path(settings.password_file),
        ca_file=path(settings.ca_file),
        certificate_file=path(settings.certificate_file),
        key_file=path(settings.key_file),
    )
