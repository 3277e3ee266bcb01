"""Rolls a pack out: offers it to a wave of devices, sends parts, waits until all are healthy."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence

from broker.aggregator.signing import Signing
from broker.errors import WireError
from broker.protocol.messages import SMALL, DeviceState, Rollout, from_bytes, to_bytes
from broker.protocol.topics import Topics
from broker.transport.channel import Channel, Message
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Disconnected
from profiles.text import printable
from toolkit.errors import RolloutError
from toolkit.observing.link import Link
from toolkit.rollout.delivery import Delivery
from toolkit.rollout.offered_pack import OfferedPack
from toolkit.rollout.waves import waves

LOOK_SECONDS = 0.5
LINK_SECONDS = 6.0  # until the broker has to have answered
QUIET_SECONDS = 0.4  # without a message after which what is retained has come
FLUSH_SECONDS = 5.0

Tell = Callable[[Delivery], None]  # is called whenever a device has reached another stage


class Rollouts:
    """Speaks as the operator."""

    def __init__(
        self,
        topics: Topics,
        channel: Channel,
        *,
        signing: Signing | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics = topics
        self._channel = channel
        self._signing = signing
        self._clock = clock

    def running(self) -> dict[str, int]:
        """Returns the version of each device that is online and runs from a pack."""
        found: dict[str, int] = {}
        linked, end = False, self._clock() + LINK_SECONDS
        heard = self._clock()
        while self._clock() < (heard + QUIET_SECONDS if linked else end):
            match self._receive(0.1):
                case Connected():
                    linked, heard = True, self._clock()
                case Message(topic, payload):
                    heard = self._clock()
                    match self._topics.sender(topic):
                        case (device, "state"):
                            found.pop(device, None)
                            found |= _version(device, payload)
        if not linked:
            raise RolloutError("the broker does not answer.")
        return found

    def roll_out(
        self, pack: OfferedPack, devices: Sequence[str], *, within: int, wait: float, tell: Tell
    ) -> None:
        """Takes one wave after the other; raises `RolloutError` after one that is not healthy."""
        for wave in waves(devices):
            deliveries = {
                name: Delivery(name, len(pack.parts), now=self._clock(), silent_after=wait + within)
                for name in wave
            }
            try:
                self._roll_out(pack, deliveries, within, tell)
            finally:
                for name in wave:  # withdrawn, or done with
                    self._channel.publish(self._topics.offer(name), b"", retain=True)
                self._channel.transport.flush(FLUSH_SECONDS)
            ill = [d for d in deliveries.values() if not d.is_healthy]
            if ill:
                left = len(devices) - devices.index(wave[-1]) - 1
                raise RolloutError(
                    f"{ill[0].device} does not run version {pack.version}: {ill[0].text}; "
                    f"{left} devices were not asked."
                )

    def _roll_out(
        self, pack: OfferedPack, wave: dict[str, Delivery], within: int, tell: Tell
    ) -> None:
        signer = self._signing.signer if self._signing else None
        for name in wave:
            topic = self._topics.offer(name)
            offer = to_bytes(pack.offer(name, within=within), topic=topic, signer=signer)
            self._channel.publish(topic, offer, retain=True)
        while not all(delivery.is_over for delivery in wave.values()):
            match self._receive(LOOK_SECONDS):
                case Message(topic, payload, False):
                    delivery = wave.get((self._topics.sender(topic) or ("", ""))[0])
                    said = _said(topic, payload, self._topics, pack.version)
                    if delivery and said and delivery.heard(said, self._clock()):
                        tell(delivery)
            for name, delivery in wave.items():
                for number in delivery.due(self._clock()):
                    self._channel.publish(self._topics.pack(name), pack.parts[number])
                if delivery.give_up_if_silent(self._clock()):
                    tell(delivery)

    def _receive(self, seconds: float) -> object:
        event = self._channel.receive(seconds)
        if isinstance(event, Disconnected) and event.final:
            raise RolloutError(event.reason)
        return event


def _version(device: str, payload: bytes) -> dict[str, int]:
    with contextlib.suppress(WireError, ValueError):
        state = from_bytes(DeviceState, payload)
        if state.online and isinstance(version := state.about.get("pack"), str):
            return {device: int(version[:20])}
    return {}


def _said(topic: str, payload: bytes, topics: Topics, version: int) -> Rollout | None:
    """Returns what a device says about this pack, if that is what the message is."""
    sender = topics.sender(topic)
    if sender is None or sender[1] != "rollout":
        return None
    with contextlib.suppress(WireError):
        said = from_bytes(Rollout, payload)
        if (said.device, said.version) == (sender[0], version):
            return Rollout(**{**vars(said), "text": printable(said.text[:300])})
    return None


@contextlib.contextmanager
def rolling_out(fleet: str, link: Link, signing: Signing | None) -> Iterator[Rollouts]:
    """Yields who rolls packs out in a fleet."""
    topics = Topics(fleet)
    transport = MqttTransport(
        link.address,
        client_id=topics.client_id(f"rollout-{secrets.token_hex(4)}"),
        subscriptions=topics.of_operator(),
        credentials=link.credentials,
        keep_session=False,
    )
    with contextlib.closing(Channel(transport, limit=SMALL, held_limit=SMALL)) as channel:
        yield Rollouts(topics, channel, signing=signing)
