"""A simulated link: how long packets take, which ones are lost, and what its users see of it.

Time is a number here that only sleeping moves, unless a test says otherwise.
"""

import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.errors import TransportError
from broker.transport.channel import Channel, Message
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_rules import packet_bytes
from broker.transport.simulated_link import RETRANSMIT_SECONDS, Lane, SimulatedLink
from broker.transport.transport import Connected, Event, Packet, QueueLimits

UPDATE_BYTES = 164_000  # of the Atari lightweight branch's shared slice in float32


class FakeTime:
    """A clock, and the sleep that moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    @property
    def passed(self) -> float:
        return self.now - 1000.0


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def shaped(broker: MemoryBroker, fake: FakeTime) -> Callable[..., SimulatedLink]:
    """A connected device behind a link; hears `down/#`."""

    def make(**options: object) -> SimulatedLink:
        inner = MemoryTransport(broker, client_id="device", subscriptions=["down/#"])
        link = {"bandwidth_kbps": 1000, "clock": fake, "sleep": fake.sleep} | options
        transport = SimulatedLink(inner, **link)  # type: ignore[arg-type]
        assert transport.receive(0.0) == Connected(None)
        return transport

    return make


@pytest.fixture
def peer(broker: MemoryBroker) -> MemoryTransport:
    """At the broker, without a link; hears `up/#`."""
    transport = MemoryTransport(broker, client_id="peer", subscriptions=["up/#"])
    assert transport.receive(0.0) == Connected(None)
    return transport


def drain(transport: MemoryTransport) -> list[Event]:
    return list(iter(lambda: transport.receive(0.0), None))


# --- time -----------------------------------------------------------------------------------------


def test_a_lane_serialises_and_latency_does_not_add_up() -> None:
    """1000 bytes at 8 kbps take 1 s each; the link is then free, and each arrives 0.5 s later."""
    lane = Lane(bandwidth_kbps=8, latency_seconds=0.5)
    assert [lane.carry(10.0, 1000) for _ in range(3)] == [11.5, 12.5, 13.5]
    assert lane.carry(20.0, 500) == 21.0


@pytest.mark.parametrize(("size", "seconds"), [(UPDATE_BYTES, 1.312), (UPDATE_BYTES // 4, 0.328)])
def test_an_update_takes_its_bits_over_the_bandwidth(
    shaped: Callable[..., SimulatedLink],
    peer: MemoryTransport,
    fake: FakeTime,
    size: int,
    seconds: float,
) -> None:
    """8 · 164,000 / 1,000,000 s in float32; a quarter of it as int8."""
    device = shaped()
    device.publish("up/update", bytes(size))
    assert fake.passed == 0.0  # who publishes does not wait
    assert device.receive(0.9 * seconds) is None
    assert drain(peer) == []
    assert device.flush(10.0)
    assert fake.passed == pytest.approx(seconds, abs=5e-4)  # MQTT's header is some bytes too
    assert drain(peer) == [Packet("up/update", bytes(size))]


def test_the_way_down_takes_as_long(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport, fake: FakeTime
) -> None:
    device = shaped(latency_seconds=0.2)
    peer.publish("down/shared", bytes(UPDATE_BYTES))
    assert device.receive(1.5) is None
    assert fake.passed == pytest.approx(1.5)
    assert device.receive(1.0) == Packet("down/shared", bytes(UPDATE_BYTES))
    assert fake.passed == pytest.approx(1.512, abs=5e-4)


def test_parts_follow_each_other_and_both_ways_are_used_at_once(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport, fake: FakeTime
) -> None:
    """Latency is paid once, and what comes down does not delay what goes up."""
    device = shaped(latency_seconds=2.0)
    peer.publish("down/shared", bytes(125_000))
    channel = Channel(device, limit=2**20, part_bytes=25_000, held_limit=2**21)
    channel.publish("up/update", bytes(125_000))
    arrived = channel.receive(10.0)
    assert arrived == Message("down/shared", bytes(125_000))
    assert device.flush(10.0)
    assert fake.passed == pytest.approx(3.0, rel=0.05)  # 1 s on the link, and 2 s
    assert len(drain(peer)) == 6


def test_what_was_published_travels_while_its_user_is_busy(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport, fake: FakeTime
) -> None:
    device = shaped()
    device.publish("up/update", bytes(UPDATE_BYTES))
    fake.now += 5.0
    assert device.receive(0.0) is None
    assert drain(peer) == [Packet("up/update", bytes(UPDATE_BYTES))]


def test_a_flush_that_is_too_short_says_so(
    shaped: Callable[..., SimulatedLink], fake: FakeTime
) -> None:
    device = shaped()
    device.publish("up/update", bytes(UPDATE_BYTES))
    assert not device.flush(1.0)
    assert fake.passed == pytest.approx(1.0)
    assert device.flush(1.0)


def test_retained_packets_stay_retained(
    shaped: Callable[..., SimulatedLink], broker: MemoryBroker
) -> None:
    device = shaped()
    device.publish("up/state", b"here", retain=True)
    device.publish("up/update", b"once")
    assert device.flush(1.0)
    late = MemoryTransport(broker, client_id="late", subscriptions=["up/#"])
    assert drain(late) == [Connected(None), Packet("up/state", b"here")]


def test_news_of_the_link_does_not_overtake_packets(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport, broker: MemoryBroker
) -> None:
    device = shaped()
    peer.publish("down/shared", bytes(UPDATE_BYTES))
    broker.stop()
    broker.start()
    events = [device.receive(10.0) for _ in range(3)]
    assert [type(event).__name__ for event in events] == ["Packet", "Disconnected", "Connected"]


# --- loss -----------------------------------------------------------------------------------------


def sent_through(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport, seed: int
) -> tuple[SimulatedLink, list[int]]:
    device = shaped(loss=0.1, seed=seed)
    for number in range(1000):
        device.publish("up/x", number.to_bytes(2))
    device.flush(60.0)
    arrived = [int.from_bytes(e.payload) for e in drain(peer) if isinstance(e, Packet)]
    device.close()
    return device, arrived


def test_what_is_lost_on_its_way_up_follows_from_the_seed(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport
) -> None:
    device, arrived = sent_through(shaped, peer, seed=1)
    luck = random.Random("1/up")
    assert arrived == [n for n in range(1000) if luck.random() >= 0.1]
    assert device.lost == 1000 - len(arrived)
    assert 60 < device.lost < 140  # 100 ± 4 standard deviations
    assert device.sent_bytes == 2000  # the lost ones too were sent
    assert device.dropped == 0
    assert sent_through(shaped, peer, seed=1)[1] == arrived
    assert sent_through(shaped, peer, seed=2)[1] != arrived


def test_a_flush_over_a_loss_is_not_complete(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport
) -> None:
    """So whoever must be heard publishes again until it was."""
    device = shaped(loss=0.5, seed=3)
    answers = []
    for _ in range(20):
        device.publish("up/x", b"x")
        answers.append(device.flush(1.0))
    assert answers.count(True) == len(drain(peer))
    assert answers.count(False) == device.lost
    assert {True, False} == set(answers)


def test_what_is_lost_on_its_way_down_comes_again_and_the_rest_waits(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport, fake: FakeTime
) -> None:
    device = shaped(loss=0.3, seed=5)
    for number in range(50):
        peer.publish("down/x", number.to_bytes(1) * 1000)
    took, began = [], fake.passed
    for number in range(50):
        assert device.receive(100.0) == Packet("down/x", number.to_bytes(1) * 1000)
        took.append(fake.passed - began)
    # Each packet is on the link for 8·n/bandwidth; each loss costs that, and the wait.
    each = 8 * packet_bytes("down/x", 1000) / 1e6
    assert device.lost > 5
    total = 50 * each + device.lost * (each + RETRANSMIT_SECONDS)
    assert took[-1] == pytest.approx(total, abs=1e-3)
    assert all(later > earlier for earlier, later in pairwise(took))


# --- limits and ends ------------------------------------------------------------------------------


def test_what_finds_no_room_is_dropped(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport
) -> None:
    device = shaped(limits=QueueLimits(outbox_packets=3, outbox_bytes=100))
    for size in (40, 40, 40, 10, 1):
        device.publish("up/x", bytes(size))
    assert device.dropped == 2  # the third is beyond 100 bytes, the last a fourth packet
    assert not device.flush(10.0)
    assert [len(e.payload) for e in drain(peer) if isinstance(e, Packet)] == [40, 40, 10]
    device.publish("up/x", bytes(90))
    assert device.flush(10.0)  # there is room again


def test_a_full_way_down_waits_in_the_transport(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport
) -> None:
    device = shaped(limits=QueueLimits(inbox_packets=2))
    for number in range(9):
        peer.publish("down/x", bytes([number]))
    found = [device.receive(10.0) for _ in range(9)]
    assert found == [Packet("down/x", bytes([number])) for number in range(9)]
    assert device.dropped == 0
    assert device.received_bytes == 9


def test_after_closing_nothing_waits(
    shaped: Callable[..., SimulatedLink], peer: MemoryTransport, fake: FakeTime
) -> None:
    device = shaped()
    device.publish("up/x", bytes(UPDATE_BYTES))
    peer.publish("down/x", bytes(UPDATE_BYTES))
    assert device.receive(0.5) is None
    device.close()
    device.close()
    assert device.receive(60.0) == Packet("down/x", bytes(UPDATE_BYTES))  # was on its way
    assert device.receive(60.0) is None
    assert not device.flush(60.0)
    assert fake.passed == pytest.approx(0.5)
    assert drain(peer) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bandwidth_kbps": 0}, "the bandwidth of a simulated link must be above 0 kbps."),
        ({"bandwidth_kbps": float("nan")}, "the bandwidth of a simulated link must be above"),
        ({"latency_seconds": -1}, "the latency of a simulated link must be 0 s or more."),
        ({"latency_seconds": float("inf")}, "the latency of a simulated link must be 0 s or"),
        ({"loss": 1.0}, "the loss of a simulated link must be at least 0 and below 1."),
        ({"loss": -0.1}, "the loss of a simulated link must be at least 0 and below 1."),
    ],
)
def test_impossible_links_are_refused(
    shaped: Callable[..., SimulatedLink], options: dict[str, float], sentence: str
) -> None:
    with pytest.raises(TransportError) as caught:
        shaped(**options)
    assert str(caught.value).startswith(sentence)


def test_a_topic_that_nobody_can_publish_on_is_refused_at_once(
    shaped: Callable[..., SimulatedLink],
) -> None:
    with pytest.raises(ValueError, match="nothing can be published on topic 'a/#'"):
        shaped().publish("a/#", b"")


def test_one_thread_publishes_while_another_waits(
    broker: MemoryBroker, peer: MemoryTransport
) -> None:
    """In real time: the waiting one moves what the other publishes."""
    inner = MemoryTransport(broker, client_id="device", subscriptions=["down/#"])
    device = SimulatedLink(inner, bandwidth_kbps=10_000)
    assert device.receive(1.0) == Connected(None)
    heard: list[Event | None] = []
    waiting = threading.Thread(target=lambda: heard.append(device.receive(30.0)))
    waiting.start()
    device.publish("up/x", b"up")
    assert peer.receive(30.0) == Packet("up/x", b"up")
    peer.publish("down/x", b"down")
    waiting.join(30.0)
    assert heard == [Packet("down/x", b"down")]
    device.close()


def test_around_a_real_broker(mosquitto: Mosquitto, fake: FakeTime) -> None:
    """50 kB there and back at 2000 kbps are 0.4 s of sleep, however fast the broker is."""

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        fake.sleep(seconds)

    inner = MqttTransport(mosquitto.address, client_id="device", subscriptions=["echo/#"])
    device = SimulatedLink(inner, bandwidth_kbps=2000, clock=fake, sleep=sleep)
    try:
        assert isinstance(device.receive(30.0), Connected)
        began = fake.now
        device.publish("echo/x", bytes(50_000))
        assert device.receive(30.0) == Packet("echo/x", bytes(50_000))
        assert fake.now - began >= 0.4
        assert device.flush(30.0)
    finally:
        device.close()
