"""Tells Home Assistant what is heard of a fleet, and devices what is switched there.

It speaks over the fleet's own broker, as the operator, in one connection: a provisioned broker lets
a user have no more.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from broker.aggregator.signing import Signing
from broker.errors import NameRefused, WireError
from broker.protocol.messages import SMALL, Answer, Command, from_bytes, to_bytes
from broker.protocol.topics import Topics, check_name
from broker.transport.channel import Channel, Message
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Disconnected, Will
from toolkit.errors import ObserverError
from toolkit.home_assistant.discovery import (
    OFF,
    ON,
    PREFIX,
    discovery_of,
    discovery_topic,
    state_of,
)
from toolkit.observing.link import Link
from toolkit.observing.received import received
from toolkit.observing.status import FleetStatus

REASON = "paused in Home Assistant"
AVAILABLE, NOT_AVAILABLE = b"online", b"offline"


@dataclass(frozen=True)
class Publication:
    """A retained message that is to be published; an empty one clears what was there."""

    topic: str
    payload: bytes


class Bridge:
    """Turns what arrives into what is to be published; no I/O."""

    def __init__(
        self,
        topics: Topics,
        *,
        signing: Signing | None = None,
        prefix: str = PREFIX,
        switch: bool = True,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._topics = topics
        self._signing = signing
        self._prefix = prefix
        self._switch = switch
        self._wall_clock = wall_clock
        self._fleet = FleetStatus(fleet=topics.fleet)
        self._published: dict[str, bytes] = {}  # by topic
        self._commands: dict[str, int] = {}  # by device: the number of the one without an answer

    def take(self, topic: str, payload: bytes, *, retained: bool) -> list[Publication]:
        """Returns what a message is a reason to publish."""
        match topic.removeprefix(self._topics.root).split("/"):
            case ["", "home", device, "pause"] if self._switch and not retained:
                return self._switched(device, payload)
            case ["", "device", device, "answer"]:
                return self._answered(device, payload)
        before, now_ms = self._fleet, int(1000 * self._wall_clock())
        self._fleet = received(before, topic, payload, now_ms=now_ms, retained=retained)
        gone = [name for name in before.devices if name not in self._fleet.devices]
        changed = (
            name
            for name, device in self._fleet.devices.items()
            if before.devices.get(name) is not device or before.aggregator != self._fleet.aggregator
        )
        return [p for n in (*gone, *changed) for p in self._told(n)]

    def _told(self, name: str) -> list[Publication]:
        """What is new about a device: first what it is, then how it is."""
        device = self._fleet.devices.get(name)
        found: list[tuple[str, Any]] = [
            (discovery_topic(self._topics.fleet, name, self._prefix), None),
            (self._topics.home_state(name), None),
        ]
        if device is not None and device.online is not None:  # it has spoken for itself
            about = discovery_of(self._fleet, device, switch=self._switch)
            found = [(found[0][0], about), (found[1][0], state_of(self._fleet, device))]
        new = []
        for topic, value in found:
            payload = b"" if value is None else json.dumps(value, ensure_ascii=False).encode()
            if self._published.get(topic, b"") != payload:
                self._published[topic] = payload
                new.append(Publication(topic, payload))
        return new

    def _switched(self, device: str, payload: bytes) -> list[Publication]:
        what = {ON.encode(): "pause", OFF.encode(): "resume"}.get(payload)
        try:
            check_name("device", device)
        except NameRefused:
            return []
        if what is None or device not in self._fleet.devices:
            return []
        topic, number = self._topics.command(device), int(1000 * self._wall_clock())
        self._commands[device] = number
        command = Command(device=device, what=what, number=number, text=REASON)
        signer = self._signing.signer if self._signing else None
        return [Publication(topic, to_bytes(command, topic=topic, signer=signer))]

    def _answered(self, device: str, payload: bytes) -> list[Publication]:
        with contextlib.suppress(WireError):
            if from_bytes(Answer, payload).number == self._commands.get(device):
                del self._commands[device]
                return [Publication(self._topics.command(device), b"")]
        return []


def run_bridge(bridge: Bridge, channel: Channel, topics: Topics) -> Iterator[None]:
    """Works for ever; yields after every event."""
    while True:
        match channel.receive(1.0):
            case Connected():
                channel.publish(topics.home_available, AVAILABLE, retain=True)
            case Disconnected(reason, final=True):
                raise ObserverError(reason)
            case Message(topic, payload, retained):
                for said in bridge.take(topic, payload, retained=retained):
                    channel.publish(said.topic, said.payload, retain=True)
        yield


@contextlib.contextmanager
def bridge_channel(fleet: str, link: Link) -> Iterator[Channel]:
    """Yields the one connection that a bridge has."""
    topics = Topics(fleet)
    heard = dict.fromkeys((*topics.of_observer(), topics.answer("+"), topics.home_switch("+")))
    transport = MqttTransport(
        link.address,
        client_id=topics.client_id(f"home-assistant-{secrets.token_hex(4)}"),
        subscriptions=tuple(heard),
        will=Will(topics.home_available, NOT_AVAILABLE),
        credentials=link.credentials,
        keep_session=False,
    )
    with contextlib.closing(Channel(transport, limit=SMALL, held_limit=SMALL)) as channel:
        try:
            yield channel
        finally:
            channel.publish(topics.home_available, NOT_AVAILABLE, retain=True)
            transport.flush(2.0)
