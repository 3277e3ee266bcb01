"""What Home Assistant is told about a device: pure.

One retained message for each device, as its MQTT integration has known since 2024.11: *device
discovery*. All entities read one JSON message, the state of the device.
"""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version
from typing import Any

from broker.protocol.topics import Topics
from toolkit.observing.status import Activity, DeviceStatus, FleetStatus

PREFIX = "homeassistant"  # where Home Assistant listens, unless it is told otherwise
ON, OFF = "ON", "OFF"
MIB = 2**20
_BY_OPERATOR = "operator:"


def discovery_topic(fleet: str, device: str, prefix: str = PREFIX) -> str:
    """Returns where a device is announced; ids there have no dots."""
    return f"{prefix}/device/stemshare-{_plain(fleet)}/{_plain(device)}/config"


def state_of(fleet: FleetStatus, device: DeviceStatus) -> dict[str, Any]:
    """Returns the JSON that the entities read; what is not known is left out."""
    doing = fleet.doing(device.name)
    found: dict[str, Any] = {
        "activity": str(doing.activity),
        "why": doing.why,
        "connected": OFF if doing.activity in (Activity.OFFLINE, Activity.UNKNOWN) else ON,
        "paused": ON if device.waiting.startswith(_BY_OPERATOR) else OFF,
    }
    if device.trained_round >= 0:
        found["round"] = device.trained_round
    if device.score is not None:
        found["score"] = device.score
    if (memory := device.metrics.get("memory_bytes")) is not None:
        found["memory"] = round(memory / MIB, 1)
    if (celsius := device.metrics.get("temperature_celsius")) is not None:
        found["temperature"] = celsius
    return found


def discovery_of(fleet: FleetStatus, device: DeviceStatus, *, switch: bool) -> dict[str, Any]:
    """Returns the announcement of a device with what it has shown so far."""
    topics, known = Topics(fleet.fleet), state_of(fleet, device)
    own = f"stemshare-{_plain(fleet.fleet)}-{_plain(device.name)}"

    def entity(key: str, platform: str, name: str, **more: Any) -> dict[str, Any]:
        template = "{{ value_json." + key + " }}"
        return {
            "platform": platform,
            "unique_id": f"{own}-{key}",
            "name": name,
            "value_template": template,
            **more,
        }

    entities = [
        entity("activity", "sensor", "Activity", icon="mdi:school"),
        entity(
            "connected",
            "binary_sensor",
            "Connection",
            device_class="connectivity",
            entity_category="diagnostic",
        ),
    ]
    if "round" in known:
        entities.append(entity("round", "sensor", "Round", state_class="measurement"))
    if "score" in known:
        name = device.measure.replace("_", " ").capitalize()
        entities.append(
            entity(
                "score", "sensor", name, state_class="measurement", suggested_display_precision=3
            )
        )
    if "memory" in known:
        entities.append(
            entity(
                "memory",
                "sensor",
                "Memory",
                device_class="data_size",
                unit_of_measurement="MiB",
                state_class="measurement",
                entity_category="diagnostic",
            )
        )
    if "temperature" in known:
        entities.append(
            entity(
                "temperature",
                "sensor",
                "Temperature",
                device_class="temperature",
                unit_of_measurement="°C",
                state_class="measurement",
            )
        )
    if switch:
        command = topics.home_switch(device.name)
        entities.append(
            entity("paused", "switch", "Paused", command_topic=command, icon="mdi:pause")
        )
    return {
        "device": {
            "identifiers": [own],
            "name": f"{device.name} ({fleet.fleet})",
            "manufacturer": "stemshare",
            "model": device.about.get("branch", "device"),
            "sw_version": device.about.get("pack", "") or device.about.get("runtime", ""),
        },
        "origin": {"name": "stemshare", "sw_version": version("stemshare")},
        "components": {entry["unique_id"].removeprefix(f"{own}-"): entry for entry in entities},
        "state_topic": topics.home_state(device.name),
        "availability_topic": topics.home_available,
        "qos": 1,
    }


def _plain(name: str) -> str:
    """Returns the name as Home Assistant takes it, and two names never as the same."""
    if re.fullmatch(r"[a-zA-Z0-9_-]+|\+", name):  # or a wildcard
        return name
    return f"{name.replace('.', '-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
