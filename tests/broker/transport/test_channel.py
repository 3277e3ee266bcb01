"""Messages of any size over a broker in this process: whole if they fit, otherwise in parts."""

import numpy as np
import pytest

from broker.errors import Oversized, WireError
from broker.protocol.parts import SMALLEST, split
from broker.protocol.wire import encode
from broker.transport.channel import PART_BYTES, Broken, Channel, Event, Message
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.mqtt_rules import packet_bytes
from broker.transport.transport import Connected, Disconnected, Packet

TOPIC = "fleet/shared"
LIMIT = 200_000
END = "test/end"  # behind everything that a test has published


def message(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def open_channel(
    broker: MemoryBroker, name: str, *, limit: int = LIMIT, part_bytes: int = 10_000
) -> Channel:
    """Connected, and subscribed to everything."""
    transport = MemoryTransport(broker, client_id=name, subscriptions=("#",))
    channel = Channel(transport, limit=limit, part_bytes=part_bytes, held_limit=2 * limit)
    assert channel.receive(0) == Connected(broker.max_packet_bytes)
    return channel


def events(channel: Channel) -> list[Event]:
    """All that are waiting; a part that completes nothing is none."""
    channel.transport.publish(END, b"")
    found = []
    while (event := channel.receive(0)) != Message(END, b""):
        assert channel.transport.dropped == 0, "the end may be lost"
        if event is not None:
            found.append(event)
    return found


def packets(transport: MemoryTransport) -> list[Packet]:
    found = []
    while (event := transport.receive(0)) is not None:
        if isinstance(event, Packet) and event.topic != END:
            found.append(event)
    return found


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def wire(broker: MemoryBroker) -> MemoryTransport:
    """Sees every packet as it is."""
    return MemoryTransport(broker, client_id="wire", subscriptions=("#",))


@pytest.mark.parametrize("size", [0, 1, 9_999, 10_000])
def test_a_small_message_goes_as_it_is(
    broker: MemoryBroker, wire: MemoryTransport, size: int
) -> None:
    channel = open_channel(broker, "a")
    channel.publish(TOPIC, message(size))
    assert packets(wire) == [Packet(TOPIC, message(size))]
    assert events(channel) == [Message(TOPIC, message(size))]


@pytest.mark.parametrize("size", [10_001, 50_000, LIMIT])
def test_a_large_message_goes_in_parts_and_arrives_whole(
    broker: MemoryBroker, wire: MemoryTransport, size: int
) -> None:
    sender, receiver = open_channel(broker, "a"), open_channel(broker, "b")
    sender.publish(TOPIC, message(size))
    seen = packets(wire)
    assert [p.topic for p in seen] == [f"{TOPIC}/{i}" for i in range(-(-size // (10_000 - 512)))]
    assert [p.payload for p in seen] == list(split(message(size), 10_000))
    assert max(len(p.payload) for p in seen) <= 10_000
    assert events(receiver) == [Message(TOPIC, message(size))]


def test_parts_are_below_a_megabyte_unless_said_otherwise(
    broker: MemoryBroker, wire: MemoryTransport
) -> None:
    channel = Channel(
        MemoryTransport(broker, client_id="a"), limit=3 * PART_BYTES, held_limit=6 * PART_BYTES
    )
    channel.publish(TOPIC, bytes(2 * PART_BYTES))
    sizes = [len(p.payload) for p in packets(wire)]
    assert len(sizes) == 3 and PART_BYTES - 512 < max(sizes) <= PART_BYTES < 10**6


@pytest.mark.parametrize("most", [6_000, 8_192, 11_000, 11_024, 100_000])
def test_packets_fit_in_what_the_broker_takes(most: int) -> None:
    broker = MemoryBroker(max_packet_bytes=most)
    wire = MemoryTransport(broker, client_id="wire", subscriptions=("#",))
    sender, receiver = open_channel(broker, "a"), open_channel(broker, "b")
    topic = "stemshare/v1/" + "f" * 63 + "/device/" + "d" * 63 + "/shared"
    for size in (most // 2, most, LIMIT):
        sender.publish(topic, message(size))
        seen = packets(wire)
        assert max(packet_bytes(p.topic, len(p.payload)) for p in seen) <= most
        assert max(len(p.payload) for p in seen) <= 10_000
        assert events(receiver) == [Message(topic, message(size))]
    assert sender.transport.dropped == 0


def test_another_broker_may_take_more(broker: MemoryBroker, wire: MemoryTransport) -> None:
    """Each Connected says anew what the broker takes."""
    broker.max_packet_bytes = 6_000
    channel = open_channel(broker, "a")
    channel.publish(TOPIC, message(9_000))
    assert len(packets(wire)) == 3
    broker.stop()
    broker.max_packet_bytes = None
    broker.start()
    events(channel)
    channel.publish(TOPIC, message(9_000))
    assert packets(wire) == [Packet(TOPIC, message(9_000))]


@pytest.mark.parametrize("part_bytes", [0, 100, 512, 513, SMALLEST - 1])
def test_parts_are_never_smaller_than_receivers_take(broker: MemoryBroker, part_bytes: int) -> None:
    transport = MemoryTransport(broker, client_id="a")
    sender = Channel(transport, limit=LIMIT, part_bytes=part_bytes, held_limit=LIMIT)
    receiver = open_channel(broker, "b")
    sender.publish(TOPIC, message(20_000))  # before it knows what the broker takes
    assert events(receiver) == [Message(TOPIC, message(20_000))]
    assert sender.receive(0) == Connected(None)
    sender.publish(TOPIC, message(20_000, 1))
    assert events(receiver) == [Message(TOPIC, message(20_000, 1))]


def test_there_is_always_room_for_two_messages(broker: MemoryBroker) -> None:
    """However little the channel is told to hold."""
    transport = MemoryTransport(broker, client_id="b", subscriptions=("#",))
    receiver = Channel(transport, limit=LIMIT, held_limit=0)
    sender = MemoryTransport(broker, client_id="a")
    one, other = (list(split(message(150_000, seed), 10_000)) for seed in (1, 2))
    for index, parts in enumerate(zip(one, other, strict=True)):
        for topic, part in zip(("fleet/1st", "fleet/2nd"), parts, strict=True):
            sender.publish(f"{topic}/{index}", part)
    assert events(receiver) == [
        Connected(None),
        Message("fleet/1st", message(150_000, 1)),
        Message("fleet/2nd", message(150_000, 2)),
    ]


# --- retained messages -------------------------------------------------------------------


def test_a_retained_message_waits_for_a_late_subscriber(broker: MemoryBroker) -> None:
    sender = open_channel(broker, "a")
    sender.publish(TOPIC, message(50_000), retain=True)
    sender.publish("fleet/state", message(100), retain=True)
    sender.publish("fleet/passing", message(50_000, 1))
    late = open_channel(broker, "b")
    assert events(late) == [
        Message(TOPIC, message(50_000)),
        Message("fleet/state", message(100)),
    ]


@pytest.mark.parametrize("sizes", [(50_000, 50_000), (30_000, 90_000), (90_000, 30_000)])
def test_a_late_subscriber_gets_only_the_newest(
    broker: MemoryBroker, sizes: tuple[int, int]
) -> None:
    """Also when the older one had more parts, of which some are still on the broker."""
    sender = open_channel(broker, "a")
    for seed, size in enumerate(sizes):
        sender.publish(TOPIC, message(size, seed), retain=True)
    late = open_channel(broker, "b")
    assert events(late) == [Message(TOPIC, message(sizes[1], 1))]
    sender.publish(TOPIC, message(40_000, 2), retain=True)
    assert events(late) == [Message(TOPIC, message(40_000, 2))]


def test_a_subscriber_that_comes_between_two_parts_misses_nothing(broker: MemoryBroker) -> None:
    sender = MemoryTransport(broker, client_id="a")
    old, new = message(30_000, 1), message(30_000, 2)
    for index, part in enumerate(split(old, 10_000)):
        sender.publish(f"{TOPIC}/{index}", part, retain=True)
    first, *others = split(new, 10_000)
    sender.publish(f"{TOPIC}/0", first, retain=True)
    between = open_channel(broker, "b")
    assert events(between) == []
    for index, part in enumerate(others, start=1):
        sender.publish(f"{TOPIC}/{index}", part, retain=True)
    assert events(between) == [Message(TOPIC, new)]


# --- what is broken ----------------------------------------------------------------------


def broken(channel: Channel) -> Broken:
    (event,) = events(channel)
    assert isinstance(event, Broken)
    return event


@pytest.mark.parametrize("last", ["0", "7", "007", "99999999999999999999"])
def test_what_is_no_part_is_told_under_the_message_s_topic(broker: MemoryBroker, last: str) -> None:
    receiver = open_channel(broker, "b")
    receiver.transport.publish(f"{TOPIC}/{last}", b"nonsense, twice")
    event = broken(receiver)
    assert event.topic == TOPIC
    assert type(event.error) is WireError
    assert str(event.error) == "the message's header is too long, or cut off."


def test_a_claim_beyond_the_limit_is_told(broker: MemoryBroker) -> None:
    fields = {"digest": "0" * 64, "index": 0, "count": 2, "bytes": LIMIT + 1}
    receiver = open_channel(broker, "b")
    piece = np.zeros(5_000, np.uint8)
    receiver.transport.publish(f"{TOPIC}/0", encode("part", fields, {"part": piece}))
    event = broken(receiver)
    assert event.topic == TOPIC and isinstance(event.error, Oversized)
    assert str(event.error) == f"a message has {LIMIT + 1} bytes; at most {LIMIT} are taken."


@pytest.mark.parametrize("topic", [TOPIC, "fleet/²", "fleet/١", "fleet/1a", "fleet/-1", "fleet/"])
def test_a_packet_beyond_the_limit_is_told(broker: MemoryBroker, topic: str) -> None:
    """These topics do not end in a number as we write it, so they are no parts."""
    receiver = open_channel(broker, "b")
    receiver.transport.publish(topic, message(LIMIT + 1))
    event = broken(receiver)
    assert event.topic == topic and isinstance(event.error, Oversized)
    assert str(event.error) == f"a message has {LIMIT + 1} bytes; at most {LIMIT} are taken."
    receiver.transport.publish(topic, message(LIMIT))
    assert events(receiver) == [Message(topic, message(LIMIT))]


def test_a_large_message_beyond_the_receiver_s_limit_is_told(broker: MemoryBroker) -> None:
    sender = open_channel(broker, "a", limit=2 * LIMIT)
    receiver = open_channel(broker, "b")
    sender.publish(TOPIC, message(LIMIT + 1))
    told = events(receiver)
    assert {(type(e), e.topic) for e in told if isinstance(e, Broken)} == {(Broken, TOPIC)}
    assert len(told) == len(list(split(message(LIMIT + 1), 10_000)))


def test_a_broken_part_does_not_stop_what_follows(broker: MemoryBroker) -> None:
    sender, receiver = open_channel(broker, "a"), open_channel(broker, "b")
    sender.transport.publish(f"{TOPIC}/0", b"")
    sender.publish(TOPIC, message(30_000))
    event, whole = events(receiver)
    assert isinstance(event, Broken)
    assert whole == Message(TOPIC, message(30_000))


# --- the link ----------------------------------------------------------------------------


def test_the_link_s_events_pass_through(broker: MemoryBroker) -> None:
    channel = open_channel(broker, "a")
    broker.stop()
    assert channel.receive(0) == Disconnected("the broker stopped.", final=False)
    assert channel.receive(0) is None
    broker.start()
    assert channel.receive(0) == Connected(None)
    channel.close()
    channel.publish(TOPIC, b"too late")
    assert channel.transport.dropped == 1


def test_parts_that_were_interrupted_are_continued(broker: MemoryBroker) -> None:
    """The session outlives the link, and so does what was already received."""
    sender = MemoryTransport(broker, client_id="a")
    receiver = open_channel(broker, "b")
    first, *others = split(message(30_000), 10_000)
    sender.publish(f"{TOPIC}/0", first)
    assert events(receiver) == []
    assert isinstance(receiver.transport, MemoryTransport)
    receiver.transport.drop()
    for index, part in enumerate(others, start=1):
        sender.publish(f"{TOPIC}/{index}", part)
    receiver.transport.reconnect()
    lost, back, whole = events(receiver)
    assert isinstance(lost, Disconnected) and isinstance(back, Connected)
    assert whole == Message(TOPIC, message(30_000))
