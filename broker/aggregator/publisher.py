"""Everything that an aggregator publishes: its state, θ_shared, verdicts and metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from broker.aggregator.contract import Contract
from broker.merging.coordinator import Coordinator, Settings
from broker.metrics import metrics_text
from broker.protocol.messages import AggregatorState, Shared, Verdict, to_bytes
from broker.protocol.quantisation import to_half
from broker.protocol.slice import Tensors
from broker.protocol.topics import Topics
from broker.protocol.wire import Array
from broker.transport.channel import Channel


def announcement(status: str, contract: Contract, settings: Settings) -> bytes:
    """Returns the aggregator's state as a message.

    A device may have to work with the last one that it received, so each one is complete.
    """
    return to_bytes(
        AggregatorState(
            status=status,
            run=contract.run,
            mode=settings.mode,
            exchange=contract.exchange,
            merge=settings.merge.name,
            fingerprint=contract.fingerprint,
        )
    )


class Publisher:
    """Publishes what a coordinator has decided; encodes θ_shared once for each round."""

    def __init__(
        self,
        *,
        channel: Channel,
        topics: Topics,
        contract: Contract,
        coordinator: Coordinator,
        downlink: str,
    ) -> None:
        self._channel = channel
        self._topics = topics
        self._contract = contract
        self._coordinator = coordinator
        self._downlink = downlink
        self._encoded: tuple[int, bytes] | None = None  # the round, and its θ_shared

    def state(self, status: str) -> None:
        """Publishes that the aggregator is "online", "offline" or "finished"."""
        payload = announcement(status, self._contract, self._coordinator.settings)
        self._channel.publish(self._topics.aggregator_state, payload, retain=True)

    def shared(self) -> None:
        """Publishes θ_shared for all devices."""
        self._channel.publish(self._topics.shared, self._shared(), retain=True)

    def replies(self, devices: Iterable[str]) -> None:
        """Publishes θ_shared for each of these devices, on its own topic."""
        for device in devices:
            self._channel.publish(self._topics.reply(device), self._shared())

    def verdicts(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            # A device's name may be so long that no topic for its verdict is valid.
            with contextlib.suppress(ValueError):
                topic = self._topics.verdict(verdict.device)
                self._channel.publish(topic, to_bytes(verdict))

    def metrics(self, values: Mapping[str, float]) -> None:
        payload = metrics_text(values).encode()
        self._channel.publish(self._topics.aggregator_metrics, payload, retain=True)

    def flush(self, timeout: float) -> bool:
        """Returns whether the broker acknowledged everything within `timeout` seconds."""
        return self._channel.transport.flush(timeout)

    def _shared(self) -> bytes:
        state = self._coordinator.state
        if self._encoded is None or self._encoded[0] != state.round:
            message = Shared(
                run=state.run,
                round=state.round,
                fingerprint=self._contract.fingerprint,
                last=self._coordinator.finished,
                tensors=self._for_downlink(state.shared),
            )
            self._encoded = state.round, to_bytes(message)
        return self._encoded[1]

    def _for_downlink(self, tensors: Tensors) -> dict[str, Array]:
        """θ_shared as devices receive it; the state stays float32, so that small changes add up."""
        if self._downlink == "float32":
            return dict(tensors)
        return {name: to_half(value) for name, value in tensors.items()}
