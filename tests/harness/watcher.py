"""A listener that records what a fleet says."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.messages import DeviceState, M, Update, Verdict, from_bytes
from broker.protocol.quantisation import PACKED, decode_tensors
from broker.protocol.topics import ROOT
from broker.transport.address import Address
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_rules import matches
from broker.transport.transport import Connected, Packet
from tests.harness.programs import TOPICS
from tests.harness.waiting import PATIENCE

LARGEST = 2**28  # bytes of a message
T = TypeVar("T")


def in_round(number: int) -> Callable[[Any], bool]:
    """Whether a message belongs to a round."""
    return lambda message: bool(message.round == number)


class Watcher:
    """Records every packet of every fleet, in the broker's order."""

    def __init__(self, broker: Address) -> None:
        self.packets: list[Packet] = []
        self._changed = threading.Condition()
        self._connected = False
        self._transport = MqttTransport(
            broker, client_id=f"watcher-{secrets.token_hex(4)}", subscriptions=[f"{ROOT}/#"]
        )
        self._closing = False
        self._thread = threading.Thread(target=self._record)
        self._thread.start()
        self._wait(lambda: self._connected, "the watcher's connection")

    def heard(self, kind: type[M], topic_filter: str) -> list[M]:
        """Returns all messages of a kind so far, on topics that match."""
        return [
            from_bytes(kind, packet.payload, limit=LARGEST)
            for packet in list(self.packets)
            if matches(topic_filter, packet.topic)
        ]

    def accepted(self) -> list[Update]:
        """Returns updates with a verdict that accepts them, in the order of these; each once."""
        verdicts = self.heard(Verdict, TOPICS.verdict("+"))
        # Packets go on coming: what is read later has the update of every verdict read before.
        sent = {update.nonce: update for update in self.heard(Update, TOPICS.update("+"))}
        nonces = [v.nonce for v in verdicts if v.accepted and v.about == "update"]
        births = self.heard(DeviceState, TOPICS.state("+"))
        return [_plain(sent[nonce], births) for nonce in dict.fromkeys(nonces)]

    def wait_for(
        self,
        kind: type[M],
        topic_filter: str,
        wanted: Callable[[M], bool] = lambda _: True,
        *,
        since: int = 0,
    ) -> M:
        """Returns the first such message among the packets from number `since` on."""
        looked_at = since

        def find() -> M | None:
            nonlocal looked_at
            while looked_at < len(self.packets):
                packet = self.packets[looked_at]
                looked_at += 1
                if matches(topic_filter, packet.topic):
                    message = from_bytes(kind, packet.payload, limit=LARGEST)
                    if wanted(message):
                        return message
            return None

        return self._wait(find, f"a {kind.KIND} on {topic_filter}")

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._transport.close()

    def _wait(self, condition: Callable[[], T | None], what: str) -> T:
        with self._changed:
            found = self._changed.wait_for(condition, PATIENCE)
        return found or pytest.fail(f"waited {PATIENCE:g} s in vain: {what}")

    def _record(self) -> None:
        while not self._closing:
            event = self._transport.receive(0.1)
            with self._changed:
                if isinstance(event, Packet):
                    self.packets.append(event)
                elif isinstance(event, Connected):
                    self._connected = True
                self._changed.notify_all()


def _plain(update: Update, births: Iterable[DeviceState]) -> Update:
    """Returns the update with float32 tensors: codes times scales, or numbers as they came."""
    if update.encoding not in PACKED:
        return update
    born = next(b for b in births if b.fingerprint == update.fingerprint)
    shapes = {tensor.name: tensor.shape for tensor in born.slice().tensors}
    return replace(update, tensors=decode_tensors(update.tensors, update.encoding, shapes))


@pytest.fixture
def watch(mosquitto: Mosquitto) -> Iterator[Callable[[], Watcher]]:
    """Starts listeners; a new one also receives what is retained."""
    watchers: list[Watcher] = []

    def start() -> Watcher:
        watchers.append(Watcher(mosquitto.address))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.close()


@pytest.fixture
def watcher(watch: Callable[[], Watcher]) -> Watcher:
    return watch()
