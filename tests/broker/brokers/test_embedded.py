"""The embedded broker: many clients, large messages, started as a program."""

import logging
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from broker.brokers.embedded import EmbeddedBroker
from broker.errors import TransportError
from broker.transport.address import parse_address
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Packet

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
CLIENTS = 200


def test_two_hundred_clients_get_what_is_published(embedded_broker: EmbeddedBroker) -> None:
    clients = [
        MqttTransport(embedded_broker.address, client_id=f"device-{n}", subscriptions=["shared"])
        for n in range(CLIENTS)
    ]
    try:
        assert [c.receive(PATIENCE_S) for c in clients] == [Connected(None)] * CLIENTS
        clients[0].publish("shared", b"x" * 10_000, retain=True)
        expected = Packet("shared", b"x" * 10_000)
        assert [c.receive(PATIENCE_S) for c in clients] == [expected] * CLIENTS
    finally:
        closing = [threading.Thread(target=client.close) for client in clients]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


def test_a_message_of_many_megabytes_passes_whole(embedded_broker: EmbeddedBroker) -> None:
    client = MqttTransport(embedded_broker.address, client_id="me", subscriptions=["shared"])
    payload = bytes(range(256)) * 26_172  # 6.7 MB
    client.publish("shared", payload)
    assert client.receive(PATIENCE_S) == Connected(None)
    assert client.receive(PATIENCE_S) == Packet("shared", payload)
    client.close()


def test_it_logs_nothing_about_clients_that_talk_nonsense(
    embedded_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x10\xff\xff\xff\xff\xff", bytes(100)):
            with socket.create_connection(("127.0.0.1", embedded_broker.port)) as connection:
                connection.sendall(nonsense)
        client = MqttTransport(embedded_broker.address, client_id="me")
        assert client.receive(PATIENCE_S) == Connected(None)
        client.close()
    assert caplog.messages == []


def test_it_says_to_mqtt_5_that_it_does_not_speak_it(embedded_broker: EmbeddedBroker) -> None:
    with socket.create_connection(("127.0.0.1", embedded_broker.port)) as connection:
        connection.sendall(b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x02me")
        assert connection.recv(100) == b"\x20\x02\x00\x01"  # CONNACK, wrong protocol version
        assert connection.recv(100) == b""


def test_a_client_that_subscribed_to_nothing_is_sent_nothing(
    embedded_broker: EmbeddedBroker,
) -> None:
    other = MqttTransport(embedded_broker.address, client_id="other", subscriptions=["state"])
    other.publish("state", b"retained", retain=True)
    assert other.receive(PATIENCE_S) == Connected(None)
    assert other.receive(PATIENCE_S) == Packet("state", b"retained")
    with socket.create_connection(("127.0.0.1", embedded_broker.port)) as connection:
        connection.sendall(b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02me")
        connection.sendall(b"\xc0\x00")  # PINGREQ: whatever comes before its answer was pushed
        got = b""
        while not got.endswith(b"\xd0\x00"):
            got += connection.recv(100)
        assert got == b"\x20\x02\x00\x00\xd0\x00"  # CONNACK, PINGRESP
    other.close()


def test_a_port_in_use_is_named(embedded_broker: EmbeddedBroker) -> None:
    port = embedded_broker.port
    with (
        pytest.raises(TransportError, match=f"cannot listen at 127.0.0.1 port {port}: .*in use"),
        EmbeddedBroker(port=port),
    ):
        pass


def test_it_runs_alone_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "broker.brokers.embedded", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            said = process.stdout.readline()
            address = re.fullmatch(r"listening at (\S+)\n", said)
            assert address, said
            client = MqttTransport(parse_address(address[1]), client_id="me")
            assert client.receive(PATIENCE_S) == Connected(None)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=PATIENCE_S) == ("", "")
            assert process.returncode == 0
            client.close()
        finally:
            process.kill()
