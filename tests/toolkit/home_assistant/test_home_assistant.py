"""What Home Assistant is told, as its schema wants it, and what its switch does."""

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.aggregator.signing import Signing
from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.messages import Answer, Command, DeviceState, from_bytes, to_bytes
from broker.protocol.slice import Slice
from broker.protocol.topics import Topics
from broker.transport.address import Credentials
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Packet
from tests.harness.brokers import mosquitto
from toolkit.home_assistant.bridge import Bridge, bridge_channel, run_bridge
from toolkit.home_assistant.discovery import discovery_topic
from toolkit.observing.link import Link

__all__ = ["mosquitto"]

TOPICS = Topics("garden")
SWITCH = TOPICS.home_switch("pi-1")
# Keys by the documented schema of device discovery, and of each platform that is used here.
ROOT = {
    "device": dict,
    "origin": dict,
    "components": dict,
    "state_topic": str,
    "availability_topic": str,
    "qos": int,
}
DEVICE = {"identifiers": list, "name": str, "manufacturer": str, "model": str, "sw_version": str}
ORIGIN = {"name": str, "sw_version": str}
ANY = {
    "platform": str,
    "unique_id": str,
    "name": str,
    "value_template": str,
    "icon": str,
    "device_class": str,
    "entity_category": str,
}
PLATFORMS: dict[str, Mapping[str, type]] = {
    "sensor": {
        **ANY,
        "unit_of_measurement": str,
        "state_class": str,
        "suggested_display_precision": int,
    },
    "binary_sensor": ANY,
    "switch": {**ANY, "command_topic": str},
}


def check(table: dict[str, Any], schema: Mapping[str, type], *required: str) -> None:
    assert table.keys() <= schema.keys()
    assert set(required) <= table.keys()
    assert all(type(value) is schema[key] for key, value in table.items())


def born(bridge: Bridge, name: str = "pi-1", waiting: str = "") -> dict[str, bytes]:
    state = DeviceState.birth(name, Slice.of(()), {"branch": "digits", "runtime": "litert"})
    payload = to_bytes(DeviceState(**{**vars(state), "waiting": waiting}))
    told = bridge.take(TOPICS.state(name), payload, retained=False)
    return {p.topic: p.payload for p in told}


METRICS = (
    b"stemshare_device_round 12\nstemshare_device_accuracy 0.875\n"
    b"stemshare_device_memory_bytes 67108864\nstemshare_device_temperature_celsius 51.5\n"
)


def test_the_announcement_is_what_the_schema_wants() -> None:
    bridge = Bridge(TOPICS)
    born(bridge)
    told = bridge.take(TOPICS.metrics("pi-1"), METRICS, retained=False)
    announced, state = (json.loads(p.payload) for p in told)
    assert told[0].topic == "homeassistant/device/stemshare-garden/pi-1/config"
    assert told[1].topic == announced["state_topic"] == "stemshare/v1/garden/home/pi-1/state"
    check(announced, ROOT, "device", "origin", "components")
    check(announced["device"], DEVICE, "identifiers")
    check(announced["origin"], ORIGIN, "name")
    entities = announced["components"]
    assert set(entities) == {
        "activity",
        "connected",
        "round",
        "score",
        "memory",
        "temperature",
        "paused",
    }
    for key, entity in entities.items():
        check(entity, PLATFORMS[entity["platform"]], "platform", "unique_id", "value_template")
        assert entity["value_template"] == "{{ value_json." + key + " }}"
        assert key in state
    assert len({entity["unique_id"] for entity in entities.values()}) == len(entities)
    assert entities["score"]["name"] == "Accuracy"
    assert entities["paused"]["command_topic"] == SWITCH
    assert announced["availability_topic"] == "stemshare/v1/garden/home/available"
    assert state == {
        "activity": "waiting",
        "why": state["why"],
        "connected": "ON",
        "paused": "OFF",
        "round": 12,
        "score": 0.875,
        "memory": 64.0,
        "temperature": 51.5,
    }
    again = bridge.take(TOPICS.metrics("pi-1"), METRICS, retained=False)
    assert again == [], "nothing is new"


def test_a_device_goes_and_is_removed() -> None:
    bridge = Bridge(TOPICS)
    born(bridge)
    will = to_bytes(DeviceState(device="pi-1", online=False))
    (told,) = bridge.take(TOPICS.state("pi-1"), will, retained=False)
    assert json.loads(told.payload)["connected"] == "OFF"
    cleared = bridge.take(TOPICS.state("pi-1"), b"", retained=False)
    assert [(p.topic, p.payload) for p in cleared] == [
        (discovery_topic("garden", "pi-1"), b""),
        (TOPICS.home_state("pi-1"), b""),
    ]


def test_the_switch_pauses_and_resumes_with_a_signature() -> None:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    bridge = Bridge(TOPICS, signing=Signing(key, public), wall_clock=lambda: 7.0)
    assert bridge.take(SWITCH, b"ON", retained=False) == [], "nobody knows this device"
    born(bridge)
    assert bridge.take(SWITCH, b"ON", retained=True) == [], "said long ago"
    assert bridge.take(SWITCH, b"dance", retained=False) == []
    for word, what in ((b"ON", "pause"), (b"OFF", "resume")):
        (told,) = bridge.take(SWITCH, word, retained=False)
        assert told.topic == TOPICS.command("pi-1")
        command = from_bytes(Command, told.payload, topic=told.topic, key=public)
        assert (command.device, command.what, command.number) == ("pi-1", what, 7000)
    other = to_bytes(Answer(device="pi-1", number=6, done=True))
    assert bridge.take(TOPICS.answer("pi-1"), other, retained=False) == []
    answer = to_bytes(Answer(device="pi-1", number=7000, done=True))
    (cleared,) = bridge.take(TOPICS.answer("pi-1"), answer, retained=False)
    assert (cleared.topic, cleared.payload) == (TOPICS.command("pi-1"), b"")
    state = json.loads(born(bridge, waiting="operator: as asked")[TOPICS.home_state("pi-1")])
    assert (state["paused"], state["activity"]) == ("ON", "paused")


def test_without_the_switch_nobody_is_commanded() -> None:
    bridge = Bridge(TOPICS, switch=False)
    told = born(bridge)
    assert "paused" not in json.loads(told[discovery_topic("garden", "pi-1")])["components"]
    assert bridge.take(SWITCH, b"ON", retained=False) == []


@pytest.mark.parametrize("payload", [b"", b"\xff", b"{}", b"stemshare_device_round x"])
def test_what_is_no_message_changes_nothing(payload: bytes) -> None:
    bridge = Bridge(TOPICS)
    assert bridge.take(TOPICS.metrics("pi-1"), payload, retained=False) == []
    assert bridge.take(TOPICS.answer("pi-1"), payload, retained=False) == []
    assert bridge.take(f"{TOPICS.root}/home/../pause", payload, retained=False) == []


def test_ids_have_no_dots_and_stay_apart() -> None:
    names = ["a.b", "a-b", "a_b"]
    topics = {discovery_topic("garden", name) for name in names}
    assert len(topics) == 3
    assert all("." not in topic for topic in topics)


def test_over_a_real_broker(mosquitto: Mosquitto) -> None:
    """A device is born, Home Assistant finds it, and its switch reaches the device."""
    address = mosquitto.address
    link = Link(address, Credentials())
    device = MqttTransport(
        address, client_id="device", subscriptions=(TOPICS.command("pi-1"),), keep_session=False
    )
    heard = ("homeassistant/#", TOPICS.home_state("+"), TOPICS.home_available)
    home = MqttTransport(address, client_id="home", subscriptions=heard, keep_session=False)
    state = DeviceState.birth("pi-1", Slice.of(()), {"branch": "digits"})
    device.publish(TOPICS.state("pi-1"), to_bytes(state), retain=True)
    with closing(device), closing(home):
        with bridge_channel("garden", link) as channel:
            working = run_bridge(Bridge(TOPICS), channel, TOPICS)

            def until(transport: MqttTransport, topic: str) -> bytes:
                for _ in range(200):
                    next(working)
                    while event := transport.receive(0.05):
                        if isinstance(event, Packet) and event.topic == topic:
                            return event.payload
                pytest.fail(f"nothing on {topic}")

            assert until(home, TOPICS.home_available) == b"online"
            announced = json.loads(until(home, discovery_topic("garden", "pi-1")))
            assert announced["device"]["model"] == "digits"
            home.publish(announced["components"]["paused"]["command_topic"], b"ON")
            command = from_bytes(Command, until(device, TOPICS.command("pi-1")))
            assert (command.device, command.what) == ("pi-1", "pause")
        for _ in range(100):
            event = home.receive(0.1)
            if isinstance(event, Packet) and event.payload == b"offline":
                break
        else:
            pytest.fail("it never says that it is gone")
