"""What sensors publish on a real broker becomes windows, and labels that come later find them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.transport.address import Credentials, parse_address
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Disconnected, Packet
from firmware_sim.errors import SourceError
from firmware_sim.sources import mqtt_topic
from firmware_sim.sources.mqtt_topic import MqttSource
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import MqttSettings
from firmware_sim.sources.source import LateLabel, Malformed, Observation
from firmware_sim.tensor_spec import TensorSpec
from tests.harness.brokers import mosquitto
from tests.harness.waiting import wait_until

__all__ = ["mosquitto"]
Event = Observation | LateLabel | Malformed
WANTED: dict[str, Any] = {
    "x": TensorSpec((2, 2), np.dtype(np.float32)),
    "y": TensorSpec((), np.dtype(np.int32)),
    "outputs": 3,
}


def next_events(events: Iterator[Event | None], count: int) -> list[Event]:
    found: list[Event] = []
    deadline = time.monotonic() + 20
    for event in events:
        found += [event] if event is not None else []
        if len(found) == count:
            return found
        assert time.monotonic() < deadline
    raise AssertionError("the source has ended")


def shown(event: Event) -> Any:
    match event:
        case Observation(x, y, key):
            return x.tolist(), y, key
        case Malformed(reason):
            return reason
    return event


def test_samples_windows_and_late_labels(mosquitto: Mosquitto) -> None:
    settings = MqttSettings(
        fields=("a.x", "a.y"), key="id", label_topic="plant/labels", classes=("idle", "run", "hot")
    )
    request = Request(**WANTED, broker=str(mosquitto.address), alone=False)
    source = MqttSource("plant/+/accel", settings, request)
    sensor = MqttTransport(parse_address(str(mosquitto.address)), client_id="sensor")

    def send(topic: str, payload: Any) -> None:
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        sensor.publish(topic, raw)

    with closing(sensor), closing(source):
        events = source.events()
        assert next(events) is None  # it has subscribed
        # Two machines at once: no window mixes them.
        for number in range(2):
            for machine in (10, 20):
                sample = {"a": {"x": machine, "y": number}, "id": f"{machine}-{number}"}
                send(f"plant/{machine}/accel", sample)
        send("plant/10/accel", b"?")
        send("plant/labels", {"id": "20-1", "label": "hot"})
        send("plant/labels", {"id": "10-1", "label": "hut"})
        send("plant/labels", {"id": "10-1"})
        assert list(map(shown, next_events(events, 6))) == [
            ([[10, 0], [10, 1]], None, "10-1"),
            ([[20, 0], [20, 1]], None, "20-1"),
            "a message is not JSON.",
            LateLabel("20-1", 2),
            "the label 'hut' is not one of the classes (did you mean 'hot'?).",
            "a message on the topic of labels has no label.",
        ]
    assert [event for event in events if event is not None] == []


def test_whole_windows_on_another_broker(mosquitto: Mosquitto) -> None:
    settings = MqttSettings(payload="int16", whole_windows=True, broker=str(mosquitto.address))
    request = Request(**WANTED, broker="mqtt://127.0.0.1:1", device="other")
    source = MqttSource("windows", settings, request)
    sensor = MqttTransport(parse_address(str(mosquitto.address)), client_id="sensor")
    with closing(sensor), closing(source):
        events = source.events()
        assert next(events) is None
        for count in (4, 3, 4):
            sensor.publish("windows", np.arange(count, dtype="<i2").tobytes())
        assert list(map(shown, next_events(events, 3))) == [
            ([[0, 1], [2, 3]], None, ""),
            "a message has 3 numbers instead of 4.",
            ([[0, 1], [2, 3]], None, ""),
        ]


def test_a_reader_that_is_too_slow_is_told_what_it_lost(mosquitto: Mosquitto) -> None:
    settings = MqttSettings(payload="float32", whole_windows=True)
    source = MqttSource("fast", settings, Request(**WANTED, broker=str(mosquitto.address)))
    sensor = MqttTransport(parse_address(str(mosquitto.address)), client_id="sensor")
    with closing(sensor), closing(source):
        events = source.events()
        assert next(events) is None
        for _ in range(10):
            sensor.publish("fast", bytes(10**6))
        wait_until(lambda: source.received_bytes >= 10**7, "the messages")
        sensor.publish("fast", bytes(16))
        found = [shown(event) for event in next_events(events, 10)]
    oversized = "a message has 1000000 bytes; at most 16640 are read."
    assert oversized in found
    assert any(
        str(said).endswith("messages came faster than they could be read.") for said in found
    )


def test_no_window_spans_a_gap_and_retained_samples_are_taken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sample(number: int, **how: bool) -> Packet:
        return Packet("s", f"[{number}]".encode(), **how)

    coming: list[Any] = [
        Disconnected("nothing listens yet.", final=False),
        sample(1, retained=True),  # of the first link
        Connected(None),
        sample(2),
        sample(3),
        Disconnected("the link was lost.", final=False),
        sample(1, retained=True),
        sample(4),
        sample(5),
        sample(6),
        sample(8, after_gap=True),
        sample(9),
    ]

    class Scripted:
        dropped = 0

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def receive(self, timeout: float) -> Any:
            return coming.pop(0) if coming else Disconnected("that was all.", final=True)

    monkeypatch.setattr(mqtt_topic, "MqttTransport", Scripted)
    wanted = Request(x=TensorSpec((2, 1), np.dtype(np.float32)))
    events = MqttSource("s", MqttSettings(), wanted).events()
    found = [
        event.x[:, 0].tolist() for event in islice(events, 3) if isinstance(event, Observation)
    ]
    assert found == [[1, 2], [4, 5], [8, 9]]


def test_what_can_never_be_read_is_refused(tmp_path: Path) -> None:
    request = Request(**WANTED, broker="mqtt://127.0.0.1:1")
    with pytest.raises(SourceError, match="names no topic of MQTT: nothing can be subscribed"):
        MqttSource("a/#/b", MqttSettings(), request)
    with pytest.raises(SourceError, match="need key in the settings"):
        MqttSource("a", MqttSettings(label_topic="b"), request)
    with pytest.raises(SourceError, match="2 samples of 3 channels"):
        MqttSource("a", MqttSettings(fields=("x", "y", "z")), request)
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o644)
    exposed = Credentials(user="me", password_file=tmp_path / "password")
    with pytest.raises(Exception, match="password"):
        MqttSource("a", MqttSettings(), Request(**WANTED, credentials=exposed))
