"""From options to a channel: how large its packets are, and what kind of link it has."""

import argparse
from collections.abc import Callable, Iterator

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.errors import TransportError
from broker.protocol.topics import Topics
from broker.transport.channel import Channel, Message
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_rules import packet_bytes
from broker.transport.options import (
    add_link_options,
    add_simulation_options,
    open_channel,
    part_bytes_within,
    simulated_link,
)
from broker.transport.simulated_link import SimulatedLink
from broker.transport.transport import Connected, Packet, Will
from profiles import load_profile, profile_names

Connect = Callable[..., Channel]


@pytest.fixture
def connect(mosquitto: Mosquitto) -> Iterator[Connect]:
    """A device's channel as its options and its profile's limits say; hears `down/#`."""
    channels: list[Channel] = []

    def start(*options: str, **limits: int) -> Channel:
        parser = argparse.ArgumentParser()
        add_link_options(parser)
        add_simulation_options(parser)
        args = parser.parse_args(["--broker", str(mosquitto.address), *options])
        channel = open_channel(
            args,
            client_id=f"device-{len(channels)}",
            subscriptions=["down/#"],
            will=Will("gone", b""),
            limit=2**20,
            inbox_bytes=2**21,
            shape=simulated_link(args, bandwidth_kbps=50_000, seed="0"),
            **limits,
        )
        channels.append(channel)
        return channel

    yield start
    for channel in channels:
        channel.close()


def sizes_sent(channel: Channel, mosquitto: Mosquitto) -> list[int]:
    """Payloads of the packets that a message of 100,000 bytes becomes."""
    listener = MqttTransport(mosquitto.address, client_id="listener", subscriptions=["up/#"])
    try:
        assert isinstance(listener.receive(30.0), Connected)
        assert isinstance(channel.receive(30.0), Connected)
        channel.publish("up/message", bytes(100_000))
        assert channel.transport.flush(30.0)
        channel.publish("up/end", b"")
        assert channel.transport.flush(30.0)
        found: list[int] = []
        while isinstance(event := listener.receive(30.0), Packet) and event.topic != "up/end":
            found.append(len(event.payload))
        return found
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("options", "limits", "largest", "count"),
    [
        ((), {"part_bytes": part_bytes_within(32)}, 31 * 1024, 4),
        (("--part-bytes", "50000"), {"part_bytes": part_bytes_within(32)}, 50_000, 3),
        ((), {}, 100_000, 1),
    ],
    ids=["the profile's", "--part-bytes before the profile's", "neither"],
)
def test_parts_are_as_large_as_the_profile_or_the_option_says(
    connect: Connect,
    mosquitto: Mosquitto,
    options: tuple[str, ...],
    limits: dict[str, int],
    largest: int,
    count: int,
) -> None:
    sizes = sizes_sent(connect(*options, **limits), mosquitto)
    assert len(sizes) == count
    assert 0.98 * largest < max(sizes) <= largest


@pytest.mark.parametrize("name", profile_names())
def test_whole_packets_stay_within_the_profiles_limit(name: str) -> None:
    limit = load_profile(name).packet_limit_kib
    topic = f"{Topics('f' * 63).update('d' * 63)}/99999"
    assert packet_bytes(topic, part_bytes_within(limit)) <= 1024 * limit


def test_a_link_is_simulated_only_if_asked_for(connect: Connect) -> None:
    assert isinstance(connect().transport, MqttTransport)
    assert isinstance(connect("--simulate-link").transport, SimulatedLink)


def test_messages_pass_a_simulated_link(connect: Connect) -> None:
    """In parts, both ways, over a real broker."""
    device = connect("--simulate-link", "--latency-ms", "5", part_bytes=part_bytes_within(8))
    assert isinstance(device.receive(30.0), Connected)
    device.publish("down/echo", bytes(20_000))
    arrived = device.receive(30.0)
    assert arrived == Message("down/echo", bytes(20_000))


@pytest.mark.parametrize("size", ["0", "4095", "-1"])
def test_parts_that_nobody_would_take_are_refused(connect: Connect, size: str) -> None:
    with pytest.raises(TransportError, match="--part-bytes must be at least 4096"):
        connect("--part-bytes", size)
