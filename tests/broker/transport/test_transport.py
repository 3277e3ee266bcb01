"""One suite for every transport: in memory, mosquitto (MQTT 5 and 3.1.1), the embedded broker.

Clients of a real broker reach it through a relay of their own, so that a test can cut one link as
a failing network does. How the brokers truly differ is written in `Differences`.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from broker.brokers.embedded import EmbeddedBroker
from broker.brokers.mosquitto_process import Mosquitto
from broker.errors import TransportError
from broker.transport.address import Address, Credentials, login, parse_address
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_link import Version
from broker.transport.mqtt_rules import matches, packet_bytes
from broker.transport.transport import Connected, Disconnected, Packet, QueueLimits, Transport, Will

T = TypeVar("T")
PATIENCE_S = 20.0  # far more than any of this takes
SILENCE_S = 0.3  # after a flush, what has not come by then does not come
LIMIT = 50_000  # bytes, the largest packet of the brokers that can have a limit


@dataclass(frozen=True)
class Differences:
    """What a broker does not do."""

    tells_limit: bool  # its largest packet: only MQTT 5 has a place for it
    has_limit: bool  # amqtt takes packets of any size
    tells_takeover: bool  # why it hangs up on the first of two clients with one id (mosquitto 2.0
    # does not, though MQTT 5 has a word for it)


class Rig(Protocol):
    """A broker, and clients whose links can be cut."""

    differences: Differences

    def connect(
        self,
        client_id: str,
        *names: str,
        will: Will | None = None,
        limits: QueueLimits | None = None,
    ) -> Transport: ...

    def cut(self, client_id: str) -> None:
        """The network fails: neither side says goodbye, and the client cannot come back."""

    def mend(self, client_id: str) -> None: ...

    def stop(self) -> None:
        """The broker dies and forgets everything."""

    def start(self) -> None: ...


class MemoryRig:
    differences = Differences(tells_limit=True, has_limit=True, tells_takeover=True)

    def __init__(self) -> None:
        self.broker = MemoryBroker(max_packet_bytes=LIMIT)
        self.clients: dict[str, MemoryTransport] = {}

    def connect(
        self,
        client_id: str,
        *names: str,
        will: Will | None = None,
        limits: QueueLimits | None = None,
    ) -> Transport:
        client = MemoryTransport(
            self.broker, client_id=client_id, subscriptions=names, will=will, limits=limits
        )
        self.clients[client_id] = client
        return client

    def cut(self, client_id: str) -> None:
        self.clients[client_id].drop()

    def mend(self, client_id: str) -> None:
        self.clients[client_id].reconnect()

    def stop(self) -> None:
        self.broker.stop(forget=True)

    def start(self) -> None:
        self.broker.start()


class Relay:
    """A TCP relay to a port of this machine."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.links: list[socket.socket] = []
        self.listen()

    def listen(self) -> None:
        self.server = socket.create_server(("127.0.0.1", self.port))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, args=(self.server,), daemon=True).start()

    def accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = server.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    here.close()
                    continue
                self.links += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for end in self.links:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        for end in self.links:
            end.close()


class MqttRig:
    def __init__(self, broker: "Restartable", version: Version | None, differences: Differences):
        self.broker = broker
        self.version = version
        self.differences = differences
        self.relays: dict[str, Relay] = {}
        self.clients: list[MqttTransport] = []

    def connect(
        self,
        client_id: str,
        *names: str,
        will: Will | None = None,
        limits: QueueLimits | None = None,
    ) -> Transport:
        relay = self.relays.setdefault(client_id, Relay(self.broker.port))
        client = MqttTransport(
            Address("127.0.0.1", relay.port, tls=False),
            client_id=client_id,
            subscriptions=names,
            will=will,
            limits=limits,
            version=self.version,
        )
        self.clients.append(client)
        return client

    def cut(self, client_id: str) -> None:
        self.relays[client_id].cut()

    def mend(self, client_id: str) -> None:
        self.relays[client_id].listen()

    def stop(self) -> None:
        self.broker.kill()

    def start(self) -> None:
        self.broker.start()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for relay in self.relays.values():
            relay.close()


class Restartable(Protocol):
    port: int

    def kill(self) -> None: ...

    def start(self) -> None: ...


class RestartableEmbedded:
    def __init__(self) -> None:
        self.port = 0
        self.start()

    def start(self) -> None:
        self.running = EmbeddedBroker(port=self.port)
        self.running.__enter__()
        self.port = self.running.port

    def kill(self) -> None:
        self.running.__exit__(None, None, None)


@pytest.fixture(params=["memory", "mosquitto-mqtt5", "mosquitto-mqtt311", "embedded"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "memory":
        yield MemoryRig()
        return
    version: Version | None
    if request.param == "embedded":
        broker: Restartable = RestartableEmbedded()
        differences = Differences(tells_limit=False, has_limit=False, tells_takeover=False)
        version = None  # so this also tests that MQTT 3.1.1 is found
    else:
        broker = Mosquitto(tmp_path / "mosquitto", max_packet_bytes=LIMIT)
        broker.start()
        is_5 = request.param == "mosquitto-mqtt5"
        differences = Differences(tells_limit=is_5, has_limit=True, tells_takeover=False)
        version = None if is_5 else 4
    made = MqttRig(broker, version, differences)
    try:
        yield made
    finally:
        made.close()
        broker.kill()


def until(transport: Transport, kind: type[T]) -> T:
    """The next event of that kind; others are passed over."""
    while (event := transport.receive(PATIENCE_S)) is not None:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__} came")


def packets(transport: Transport, count: int) -> list[tuple[str, bytes]]:
    """The next packets; other events are passed over."""
    got = [until(transport, Packet) for _ in range(count)]
    return [(packet.topic, packet.payload) for packet in got]


def silent(transport: Transport) -> bool:
    """Whether no packet comes."""
    while (event := transport.receive(SILENCE_S)) is not None:
        if isinstance(event, Packet):
            return False
    return True


def up(rig: Rig, client_id: str, *names: str, **more: Any) -> Transport:
    """A client whose subscriptions are confirmed."""
    client = rig.connect(client_id, *names, **more)
    event = client.receive(PATIENCE_S)
    assert isinstance(event, Connected), event
    return client


def test_packets_arrive_in_the_order_of_publication(rig: Rig) -> None:
    reader, writer = up(rig, "reader", "a"), up(rig, "writer")
    sent = [("a", b"%d" % number) for number in range(200)]
    for topic, payload in sent:
        writer.publish(topic, payload)
    assert packets(reader, 200) == sent
    assert writer.flush(PATIENCE_S)
    assert writer.sent_bytes == reader.received_bytes == sum(len(p) for _, p in sent)
    assert (writer.received_bytes, writer.dropped, reader.dropped) == (0, 0, 0)


def test_a_retained_packet_waits_for_late_subscribers_until_replaced_or_cleared(rig: Rig) -> None:
    writer = up(rig, "writer")
    for payload in (b"old", b"new"):
        writer.publish("a/state", payload, retain=True)
    writer.publish("a/event", b"not retained")
    writer.publish("b/state", b"cleared soon", retain=True)
    writer.publish("b/state", b"", retain=True)
    assert writer.flush(PATIENCE_S)
    late = up(rig, "late", "a/#", "b/#")
    assert packets(late, 1) == [("a/state", b"new")]
    assert silent(late)


def test_wildcards_match_as_mqtt_says(rig: Rig) -> None:
    tree, one = up(rig, "tree", "a/#"), up(rig, "one", "a/+/c")
    writer = up(rig, "writer")
    topics = ["a", "a/b", "a/b/c", "a/x/c", "a/b/c/d", "ab", "b/a"]
    for topic in topics:
        writer.publish(topic, b"")
    assert [topic for topic, _ in packets(tree, 5)] == topics[:5]
    assert [topic for topic, _ in packets(one, 2)] == ["a/b/c", "a/x/c"]
    assert writer.flush(PATIENCE_S)
    assert silent(tree)
    assert silent(one)


def test_nobody_gets_what_only_others_subscribed_to(rig: Rig) -> None:
    writer, other = up(rig, "writer"), up(rig, "other", "theirs/#")
    writer.publish("theirs/x", b"x" * 100, retain=True)
    assert packets(other, 1) == [("theirs/x", b"x" * 100)]
    mine = up(rig, "mine", "mine")
    assert silent(mine)
    assert mine.received_bytes == 0


def test_a_broken_link_loses_nothing_that_was_sent_meanwhile(rig: Rig) -> None:
    reader, writer = up(rig, "reader", "a/#"), up(rig, "writer")
    rig.cut("reader")
    assert not until(reader, Disconnected).final
    sent = [(f"a/{number}", b"%d" % number) for number in range(5)]
    for topic, payload in sent:
        writer.publish(topic, payload)
    assert writer.flush(PATIENCE_S)
    rig.mend("reader")
    assert packets(reader, 5) == sent


def test_a_session_outlives_its_client(rig: Rig) -> None:
    up(rig, "reader", "a").close()
    writer = up(rig, "writer")
    for payload in (b"1", b"2"):
        writer.publish("a", payload)
    assert writer.flush(PATIENCE_S)
    again = rig.connect("reader", "a")
    assert packets(again, 2) == [("a", b"1"), ("a", b"2")]


def test_the_will_is_published_and_retained_when_a_client_is_lost(rig: Rig) -> None:
    watcher = up(rig, "watcher", "state")
    up(rig, "device", will=Will("state", b"lost"))
    rig.cut("device")
    assert packets(watcher, 1) == [("state", b"lost")]
    assert packets(up(rig, "late", "state"), 1) == [("state", b"lost")]


def test_a_client_that_closes_leaves_no_will(rig: Rig) -> None:
    watcher = up(rig, "watcher", "state", "noise")
    device = up(rig, "device", "noise", will=Will("state", b"lost"))
    for _ in range(50):
        device.publish("noise", bytes(1000))
    assert device.flush(PATIENCE_S)
    device.close()
    device.close()
    packets(watcher, 50)
    assert silent(watcher)


def test_births_come_back_after_the_broker_forgot_them(rig: Rig) -> None:
    device = up(rig, "device", "orders", will=Will("state", b"lost"))
    device.publish("state", b"born", retain=True)
    assert device.flush(PATIENCE_S)
    rig.stop()
    assert not until(device, Disconnected).final
    device.publish("state", b"published before the birth", retain=True)
    rig.start()
    until(device, Connected)
    device.publish("state", b"born again", retain=True)
    assert device.flush(PATIENCE_S)
    watcher = up(rig, "watcher", "state")
    assert packets(watcher, 1) == [("state", b"born again")]
    watcher.publish("orders", b"go")  # the subscription came back too
    assert packets(device, 1) == [("orders", b"go")]


def test_what_is_published_without_a_link_goes_out_in_order_when_it_is_back(rig: Rig) -> None:
    reader = up(rig, "reader", "a")
    writer = up(rig, "writer", limits=QueueLimits(outbox_packets=10, outbox_bytes=25))
    rig.cut("writer")
    until(writer, Disconnected)
    for number in range(12):
        writer.publish("a", b"%d" % number)
    writer.publish("a", bytes(16))
    assert writer.dropped == 3  # two are too many, and the last would be too large as well
    assert not writer.flush(0.0)
    rig.mend("writer")
    until(writer, Connected)
    assert writer.flush(PATIENCE_S)
    writer.publish("a", b"last")
    expected = [*(b"%d" % number for number in range(10)), b"last"]
    assert packets(reader, 11) == [("a", payload) for payload in expected]


def test_a_full_inbox_drops_and_counts(rig: Rig) -> None:
    few = up(rig, "few", "a", limits=QueueLimits(inbox_packets=3))
    small = up(rig, "small", "a", limits=QueueLimits(inbox_bytes=25))
    writer, witness = up(rig, "writer"), up(rig, "witness", "a")
    for number in range(5):
        writer.publish("a", b"%d" % number * 10)
    packets(witness, 5)
    deadline = time.monotonic() + PATIENCE_S
    while min(few.received_bytes, small.received_bytes) < 50 and time.monotonic() < deadline:
        time.sleep(0.01)  # reading before all have come would make room for them
    for reader, fit in ((few, 3), (small, 2)):
        assert packets(reader, fit) == [("a", b"%d" % number * 10) for number in range(fit)]
        assert silent(reader)
        assert (reader.dropped, reader.received_bytes) == (5 - fit, 50)
    writer.publish("a", b"there is room again")
    assert packets(few, 1) == packets(small, 1) == [("a", b"there is room again")]


def test_the_largest_packet_passes_and_the_limit_is_told(rig: Rig) -> None:
    reader = up(rig, "reader", "a")
    writer = rig.connect("writer")
    told = until(writer, Connected).max_packet_bytes
    assert told == (LIMIT if rig.differences.tells_limit else None)
    overhead = packet_bytes("a", LIMIT) - LIMIT
    largest = LIMIT - overhead if rig.differences.has_limit else 7_000_000
    if rig.differences.tells_limit:
        writer.publish("a", bytes(largest + 1))  # would end the link if it was sent
        assert not writer.flush(PATIENCE_S)
        assert writer.dropped == 1
    writer.publish("a", bytes(largest))
    assert packets(reader, 1) == [("a", bytes(largest))]


def test_two_threads_may_publish(rig: Rig) -> None:
    reader, writer = up(rig, "reader", "+"), up(rig, "writer")

    def publish(topic: str) -> None:
        for number in range(100):
            writer.publish(topic, b"%d" % number)

    threads = [threading.Thread(target=publish, args=(topic,)) for topic in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = packets(reader, 200)
    for topic in "ab":
        assert [p for t, p in got if t == topic] == [b"%d" % number for number in range(100)]


def test_a_closed_client_says_and_hears_nothing(rig: Rig) -> None:
    reader, writer = up(rig, "reader", "a"), up(rig, "writer", "a")
    writer.close()
    writer.publish("a", b"too late")
    assert writer.dropped == 1
    assert not writer.flush(0.0)
    assert writer.receive(PATIENCE_S) is None
    assert silent(reader)


def test_a_second_client_with_the_same_id_ends_the_first(rig: Rig) -> None:
    first = up(rig, "twin", "a")
    second = rig.connect("twin", "a")
    lost = until(first, Disconnected)
    assert lost.final == rig.differences.tells_takeover
    if lost.final:
        assert "'twin'" in lost.reason
        assert first.receive(PATIENCE_S) is None
    first.close()
    until(second, Connected)
    up(rig, "writer").publish("a", b"for the second")
    assert packets(second, 1) == [("a", b"for the second")]


def test_a_topic_with_a_wildcard_is_refused(rig: Rig) -> None:
    writer = up(rig, "writer")
    for topic in ("", "a/+", "#"):
        with pytest.raises(ValueError, match="nothing can be published on topic"):
            writer.publish(topic, b"")


def test_a_filter_that_mqtt_does_not_know_is_refused(rig: Rig) -> None:
    for name in ("", "a/#/b", "a#", "+a", "a/b+/c"):
        with pytest.raises(ValueError, match="nothing can be subscribed to with the filter"):
            rig.connect("reader", "a/+/#", name)


# The contract itself.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("mqtt://broker", Address("broker", 1883, False)),
        ("mqtts://broker.local/", Address("broker.local", 8883, True)),
        ("MQTT://10.0.0.1:99", Address("10.0.0.1", 99, False)),
        ("mqtts://[::1]:99", Address("::1", 99, True)),
        ("mqtt://me@broker", Address("broker", 1883, False, "me")),
        ("mqtt://me:a%40b%2F:c@broker:1", Address("broker", 1, False, "me", "a@b/:c")),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == Address(address.host, address.port, address.tls)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("broker:1883", "no mqtt:// or mqtts:// in front"),
        ("http://me:secret@broker", "no mqtt:// or mqtts:// in front"),
        ("mqtt://", "names no host"),
        ("mqtt://me:secret@:1883", "names no host"),
        ("mqtt://:secret@broker", "no user in front"),
        ("mqtt://me:secret", "the port"),
        ("mqtt://me:se/cret@bro ker", "not a name"),
        ("mqtt://broker/secret", "not a name"),
        ("mqtt://broker:0", "the port"),
        ("mqtt://broker:65536", "the port"),
        ("mqtt://broker:", "the port"),
        ("mqtt://[::1]secret:3", "something after the ]"),
        (f"mqtt://me:{'secret' * 20_000}@broker", "too long"),
    ],
)
def test_a_wrong_address_is_refused_without_repeating_it(text: str, part: str) -> None:
    with pytest.raises(TransportError) as caught:
        parse_address(text)
    assert part in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_the_password_is_in_no_text_of_an_address() -> None:
    address = parse_address("mqtts://me:secret@broker")
    assert address.password == "secret"
    assert "secret" not in f"{address} {address!r}"
    assert str(address) == "mqtts://broker:8883"


def test_the_password_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret with spaces \nignored\n", encoding="utf-8")
    file.chmod(0o600)
    address = Address("broker", 1883, False)
    credentials = Credentials(user="me", password_file=file)
    assert login(address, credentials) == ("me", "s3cret with spaces ")
    assert login(address, Credentials()) == (None, None)
    assert login(parse_address("mqtt://me:x@broker"), Credentials()) == ("me", "x")


def test_a_login_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    plain, named = Address("broker", 1883, False), parse_address("mqtt://me:secret@broker")
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe")
    for file in (empty, binary):
        file.chmod(0o600)
    for address, credentials, part in [
        (named, Credentials(user="me"), "the user is given twice"),
        (named, Credentials(password_file=empty), "the password is given twice"),
        (plain, Credentials("me", tmp_path / "none"), "cannot be read: No such file"),
        (plain, Credentials("me", empty), "empty first line"),
        (plain, Credentials("me", binary), "is not text"),
        (Address("broker", 1, False, password="secret"), Credentials(), "but no user"),
    ]:
        with pytest.raises(TransportError, match=part) as caught:
            login(address, credentials)
        assert "secret" not in str(caught.value)


def test_matching_follows_mqtt() -> None:
    yes = [("a", "a"), ("+", "a"), ("#", "a/b"), ("a/#", "a"), ("a/+", "a/"), ("+/+", "/a")]
    no = [("a", "A"), ("+", "a/b"), ("a/+", "a"), ("a/#", "ab"), ("#", "$SYS/x"), ("+/x", "$SYS/x")]
    assert [pair for pair in yes if not matches(*pair)] == []
    assert [pair for pair in no if matches(*pair)] == []


def test_a_packet_is_counted_as_on_the_wire() -> None:
    # 1 type, 1–4 length, 2 + topic, 2 identifier, 1 properties
    assert packet_bytes("ab", 0) == 1 + 1 + 4 + 2 + 1
    assert packet_bytes("a", 127 - 6) == 1 + 1 + 127
    assert packet_bytes("a", 128 - 6) == 1 + 2 + 128
    assert packet_bytes("é", 2_097_152 - 7) == 1 + 4 + 2_097_152
