"""The mosquitto that demo, benchmarks and tests start."""

import os
from pathlib import Path

import pytest

from broker.brokers import mosquitto_process
from broker.brokers.mosquitto_process import Mosquitto
from broker.errors import TransportError
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Packet


def retained(running: Mosquitto) -> Packet | None:
    """What a new client finds on topic "t"."""
    client = MqttTransport(running.address, client_id="reader", subscriptions=["t"])
    try:
        assert isinstance(client.receive(20.0), Connected)
        event = client.receive(0.3)
        assert event is None or isinstance(event, Packet)
        return event
    finally:
        client.close()


def retain(running: Mosquitto, payload: bytes) -> None:
    client = MqttTransport(running.address, client_id="writer")
    client.publish("t", payload, retain=True)
    assert client.flush(20.0)
    client.close()


def test_a_restart_keeps_the_port_and_with_persistence_what_was_retained(tmp_path: Path) -> None:
    for persistence in (True, False):
        with Mosquitto(tmp_path / str(persistence), persistence=persistence) as running:
            port, first = running.port, running.pid
            retain(running, b"kept")
            running.restart()
            assert (running.port, running.pid == first) == (port, False)
            assert retained(running) == (Packet("t", b"kept") if persistence else None)


def test_killed_it_forgets_and_starts_again(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, persistence=True) as running:
        retain(running, b"not written yet")
        killed = running.pid
        running.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(killed, 0)
        with pytest.raises(TransportError, match="not running"):
            _ = running.pid
        running.start()
        assert retained(running) is None


def test_it_listens_on_the_loopback_interface_alone(mosquitto: Mosquitto) -> None:
    listening = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    here = [line.split()[1] for line in listening if line.split()[3] == "0A"]
    assert [a for a in here if a.endswith(f":{mosquitto.port:04X}")] == [
        f"0100007F:{mosquitto.port:04X}"
    ]


def test_what_it_says_when_it_does_not_start_is_passed_on(tmp_path: Path) -> None:
    with (
        pytest.raises(TransportError, match=r"did not start and said: .*Unknown configuration"),
        Mosquitto(tmp_path, extra="no_such_setting 1"),
    ):
        pass


def test_a_port_in_use_is_named_before_anything_is_started(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    port = mosquitto.port
    with (
        pytest.raises(TransportError, match=f"port {port} is in use"),
        Mosquitto(tmp_path, port),
    ):
        pass


def test_without_the_binary_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mosquitto_process, "mosquitto_path", lambda: None)
    with pytest.raises(TransportError, match="mosquitto is not installed"), Mosquitto(tmp_path):
        pass
