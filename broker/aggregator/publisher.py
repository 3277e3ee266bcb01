"""Everything that an aggregator publishes: its state, θ_shared, verdicts, metrics, report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from broker.aggregator.contract import Contract
from broker.aggregator.epochs import Epochs
from broker.merging.coordinator import Coordinator, Settings
from broker.metrics import metrics_text
from broker.protocol.messages import AggregatorState, Answer, FleetReport, Shared, Verdict, to_bytes
from broker.protocol.quantisation import to_half
from broker.protocol.signatures import Signer
from broker.protocol.slice import Tensors
from broker.protocol.topics import Topics
from broker.protocol.wire import Array
from broker.transport.channel import Channel

STATE_ROUNDS = 100  # at most, between two publications of the state: devices bound rounds by it


def announcement(
    status: str, contract: Contract, settings: Settings, epochs: Epochs, *, round: int
) -> AggregatorState:
    """Returns the aggregator's state.

    A device may have to work with the last one that it received, so each one is complete.
    """
    return AggregatorState(
        status=status,
        run=contract.run,
        mode=settings.mode,
        exchange=contract.exchange,
        merge=settings.merge.name,
        fingerprint=contract.fingerprint,
        epoch=epochs.epoch,
        instance=epochs.instance,
        round=round,
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
        epochs: Epochs,
        downlink: str,
        signer: Signer | None,
    ) -> None:
        """`signer` signs everything that devices act upon, if the fleet has a key."""
        self._channel = channel
        self._topics = topics
        self._contract = contract
        self._coordinator = coordinator
        self._epochs = epochs
        self._downlink = downlink
        self._signer = signer
        self._announced = 0  # the round that the state last published says
        self._encoded: tuple[int, bytes] | None = None  # the round, and its θ_shared

    def state(self, *, gone: bool = False) -> None:
        """Publishes that the aggregator is "online", "offline" (gone) or "finished"."""
        topic, coordinator = self._topics.aggregator_state, self._coordinator
        status = "finished" if coordinator.finished else "offline" if gone else "online"
        self._announced = coordinator.state.round
        state = announcement(
            status,
            self._contract,
            coordinator.settings,
            self._epochs,
            round=coordinator.state.round,
        )
        self._channel.publish(topic, self._signed(state, topic), retain=True)

    def shared(self) -> None:
        """Publishes θ_shared for all devices."""
        self._channel.publish(self._topics.shared, self._shared(), retain=True)
        if self._coordinator.finished:  # devices believe that it is the last one by the state alone
            self.state()

    def replies(self, devices: Iterable[str]) -> None:
        """Publishes θ_shared for each of these devices, on its own topic."""
        for device in devices:
            self._channel.publish(self._topics.reply(device), self._shared())

    def verdicts(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            # A device's name may be so long that no topic for its verdict is valid.
            with contextlib.suppress(ValueError):
                topic = self._topics.verdict(verdict.device)
                self._channel.publish(topic, self._signed(verdict, topic))

    def metrics(self, values: Mapping[str, float]) -> None:
        payload = metrics_text(values).encode()
        self._channel.publish(self._topics.aggregator_metrics, payload, retain=True)

    def report(self, report: FleetReport) -> None:
        """Publishes what has become of devices and rounds.

        Nobody acts upon it, so it is not signed.
        """
        self._channel.publish(self._topics.report, to_bytes(report), retain=True)

    def answer(self, answer: Answer) -> None:
        self._channel.publish(self._topics.aggregator_answer, to_bytes(answer))

    def flush(self, timeout: float) -> bool:
        """Returns whether the broker acknowledged everything within `timeout` seconds."""
        return self._channel.transport.flush(timeout)

    def _shared(self) -> bytes:
        """θ_shared as a message; signed for the topic of all, whichever topic it goes to."""
        state = self._coordinator.state
        if state.round - self._announced >= STATE_ROUNDS:
            self.state()
        if self._encoded is None or self._encoded[0] != state.round:
            message = Shared(
                run=state.run,
                round=state.round,
                fingerprint=self._contract.fingerprint,
                last=self._coordinator.finished,
                tensors=self._for_downlink(state.shared),
            )
            self._encoded = state.round, self._signed(message, self._topics.shared)
        return self._encoded[1]

    def _signed(self, message: AggregatorState | Shared | Verdict, topic: str) -> bytes:
        return to_bytes(message, topic=topic, signer=self._signer)

    def _for_downlink(self, tensors: Tensors) -> dict[str, Array]:
        """θ_shared as devices receive it; the state stays float32, so that small changes add up."""
        if self._downlink == "float32":
            return dict(tensors)
        return {name: to_half(value) for name, value in tensors.items()}
