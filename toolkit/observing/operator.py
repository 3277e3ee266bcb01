"""The operator of a fleet: commands devices, and waits for their answers.

A command stays at the broker until it is answered; a device that is away obeys when it comes back.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator

from broker.aggregator.signing import Signing
from broker.errors import WireError
from broker.protocol.messages import SMALL, Answer, Command, DeviceState, from_bytes, to_bytes
from broker.protocol.topics import AGGREGATOR, Topics, check_name
from broker.transport.channel import Channel, Message
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Disconnected
from toolkit.errors import ObserverError
from toolkit.observing.link import Link

LEAVE_SECONDS = 5.0  # for a device that was removed to say goodbye


class Operator:
    """Commands one device at a time; may be called from any thread."""

    def __init__(
        self,
        topics: Topics,
        channel: Channel,
        *,
        signing: Signing | None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._topics = topics
        self._channel = channel
        self._signing = signing
        self._wall_clock = wall_clock
        self._one_at_a_time = threading.Lock()

    def tell(self, device: str, what: str, *, reason: str = "", patience: float) -> Answer | None:
        """Returns the device's answer, or None if there is none within `patience` seconds."""
        check_name("device", device)
        topic = self._topics.command(device)
        number, command = self._command(topic, device, what, reason)
        with self._one_at_a_time:
            self._publish(topic, command)
            answer = self._answer(device, number, time.monotonic() + patience)
            if answer is not None:
                self._publish(topic, b"")
        return answer

    def stop(self, *, reason: str = "", patience: float) -> Answer | None:
        """Stops the aggregator; not retained, for the next one is not meant."""
        topic = self._topics.aggregator_command
        number, command = self._command(topic, AGGREGATOR, "stop", reason)
        with self._one_at_a_time:
            self._channel.publish(topic, command)
            return self._answer(AGGREGATOR, number, time.monotonic() + patience)

    def _command(self, topic: str, whom: str, what: str, reason: str) -> tuple[int, bytes]:
        number = int(1000 * self._wall_clock())
        command = Command(device=whom, what=what, number=number, text=reason)
        signer = self._signing.signer if self._signing else None
        return number, to_bytes(command, topic=topic, signer=signer)

    def forget(self, device: str) -> None:
        """Clears what the broker retains of a device that was removed, once it is gone."""
        with self._one_at_a_time:
            self._until_gone(device, time.monotonic() + LEAVE_SECONDS)
            topics = self._topics
            for topic in (topics.state(device), topics.metrics(device), topics.rollout(device)):
                self._publish(topic, b"")
            self._channel.transport.flush(LEAVE_SECONDS)

    def _publish(self, topic: str, payload: bytes) -> None:
        self._channel.publish(topic, payload, retain=True)
        self._channel.transport.flush(LEAVE_SECONDS)

    def _answer(self, device: str, number: int, until: float) -> Answer | None:
        topics = self._topics
        wanted = topics.aggregator_answer if device == AGGREGATOR else topics.answer(device)
        while (left := until - time.monotonic()) > 0:
            match self._channel.receive(left):
                case Message(topic, payload) if topic == wanted:
                    with contextlib.suppress(WireError):
                        answer = from_bytes(Answer, payload)
                        if (answer.device, answer.number) == (device, number):
                            return answer
                case Disconnected(reason, final=True):
                    raise ObserverError(reason)
        return None

    def _until_gone(self, device: str, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            match self._channel.receive(left):
                case Message(topic, payload, False) if topic == self._topics.state(device):
                    with contextlib.suppress(WireError):
                        if payload and not from_bytes(DeviceState, payload).online:
                            return


@contextlib.contextmanager
def operating(fleet: str, link: Link, signing: Signing | None) -> Iterator[Operator]:
    """Yields an operator of a fleet."""
    topics = Topics(fleet)
    transport = MqttTransport(
        link.address,
        client_id=topics.client_id(f"operator-{secrets.token_hex(4)}"),
        subscriptions=topics.of_operator(),
        credentials=link.credentials,
        keep_session=False,
    )
    channel = Channel(transport, limit=SMALL, held_limit=SMALL)
    with contextlib.closing(channel):
        yield Operator(topics, channel, signing=signing)
