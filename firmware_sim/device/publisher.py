"""Everything that a device publishes: its state, its updates and its metrics."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from broker.metrics import metrics_text
from broker.protocol.messages import Answer, DeviceState, Rollout, to_bytes
from broker.protocol.slice import Slice
from broker.protocol.topics import Topics
from broker.transport.channel import Channel
from firmware_sim.training.waiting import Waits


class Publisher:
    """Speaks for one device; `waits` is what its training waits for."""

    def __init__(
        self,
        device: str,
        shared: Slice,
        about: Mapping[str, Any],
        *,
        channel: Channel,
        topics: Topics,
        waits: Waits,
        sent: Slice | None = None,
        vitals: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`vitals` returns numbers about the machine, to be published with the others."""
        self._vitals = vitals
        self._device = device
        self._channel = channel
        self._topics = topics
        self._waits = waits
        instance = secrets.token_hex(8)
        self._birth = DeviceState.birth(device, shared, about, instance=instance, sent=sent)
        self._metrics: dict[str, float] = {}

    def birth(self, *, asks: bool) -> None:
        """Says that the device is there, and whether its training waits."""
        told = self._waits.told
        waiting = f"{told.cause}: {told.text}" if told else ""
        self._state(replace(self._birth, asks=asks, waiting=waiting))

    def gone(self) -> None:
        self._state(DeviceState(device=self._device, online=False))

    def update(self, payload: bytes) -> None:
        self._channel.publish(self._topics.update(self._device), payload)

    def answer(self, answer: Answer) -> None:
        self._channel.publish(self._topics.answer(self._device), to_bytes(answer))

    def rollout(self, said: Rollout) -> None:
        self._channel.publish(self._topics.rollout(self._device), to_bytes(said), retain=True)

    def metrics(self, values: Mapping[str, float]) -> None:
        """Publishes these numbers, and those of before that they do not replace."""
        waited = {f'waiting_seconds{{cause="{c}"}}': s for c, s in self._waits.seconds.items()}
        transport = self._channel.transport
        traffic = {"sent_bytes": transport.sent_bytes, "received_bytes": transport.received_bytes}
        self._metrics |= {**values, **waited, **traffic, **self._vitals()}
        text = metrics_text({f"device_{name}": value for name, value in self._metrics.items()})
        self._channel.publish(self._topics.metrics(self._device), text.encode(), retain=True)

    def _state(self, state: DeviceState) -> None:
        self._channel.publish(self._topics.state(self._device), to_bytes(state), retain=True)
