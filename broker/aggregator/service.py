"""The aggregator: a coordinator between a channel and a store.

One turn of the loop: take what has arrived, check it, offer it to the coordinator, write what was
accepted to the journal, make that durable, and only then tell the devices. So whatever a device
was told survives, and whatever was lost was never promised.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from broker.aggregator.contract import Contract
from broker.aggregator.counters import Counters
from broker.aggregator.store import Store
from broker.errors import LinkRefused, Oversized, StoreError, WireError
from broker.log import Log
from broker.merging.asynchronous import Asynchronous
from broker.merging.coordinator import MAX_DEVICES, Coordinator, Outcome, Settings, State
from broker.merging.synchronous import Synchronous
from broker.metrics import metrics_text
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    Reason,
    Refused,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.quantisation import to_half
from broker.protocol.slice import Tensors
from broker.protocol.topics import Topics
from broker.protocol.wire import Array
from broker.transport.channel import Broken, Channel, Event, Message
from broker.transport.transport import Connected, Disconnected

BATCH = 64  # events handled between two commits
JOURNAL_LIMIT = 64 * 2**20  # bytes; an asynchronous journal beyond this becomes a snapshot
METRICS_SECONDS = 5.0
SHOWN = ("profile", "branch", "runtime")  # what is logged of all that a birth says of its device
LONGEST_SHOWN = 80  # characters
ECHOED = 64  # characters of a nonce that a verdict repeats; no device's own is longer
C = TypeVar("C", Update, DeviceState)
COORDINATORS: dict[str, Callable[[Settings, State, float], Coordinator]] = {
    "sync": Synchronous,
    "async": Asynchronous,
}


@dataclass(frozen=True)
class _Answer:
    """What a device is told once everything before it is durable."""

    verdict: Verdict
    reply: bool = False  # and, in asynchronous mode, θ_shared for it alone


def announcement(status: str, contract: Contract, settings: Settings) -> bytes:
    """The aggregator's state; a device may have to work with the last one, so each says it all."""
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


class Aggregator:
    """Runs until the last round is merged or `stop` is called."""

    def __init__(
        self,
        *,
        contract: Contract,
        settings: Settings,
        state: State,
        store: Store,
        channel: Channel,
        topics: Topics,
        log: Log,
        downlink: str = "float32",
        clock: Callable[[], float] = time.monotonic,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.counters = Counters()
        self._contract = contract
        self._settings = settings
        self._store = store
        self._channel = channel
        self._topics = topics
        self._log = log
        self._downlink = downlink
        self._clock = clock
        self._alive = alive  # hears, turn by turn, that the work goes on
        self._stopping = False
        self._linked = False
        self._greeting_due = False
        self._present: set[str] = set()
        self._metrics_due = 0.0
        self._encoded: tuple[int, bytes] | None = None  # θ_shared by round
        make = COORDINATORS[settings.mode]
        self._coordinator: Coordinator = make(replace(settings, rounds=None), state, clock())
        self._replay()
        self._coordinator.settings = settings  # from now on: what was accepted before counts

    @property
    def state(self) -> State:
        return self._coordinator.state

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stopping = True

    def run(self, *, linger_seconds: float = 0.0) -> bool:
        """Whether the last round is merged; otherwise `stop` was called.

        Lingers after the last round until the devices have left, if it brought the broker.
        """
        log, coordinator = self._log, self._coordinator
        log.event(
            "start",
            fleet=self._topics.fleet,
            mode=self._settings.mode,
            round=self.state.round,
            run=self.state.run,
        )
        finished_before = coordinator.finished
        if finished_before:
            text = "this --state has all its rounds; give more --rounds, or another --state."
            log.event("nothing_to_do", text=text)
        while not self._stopping and not coordinator.finished:
            self.turn()
        while coordinator.finished and not self._stopping and not self._told():
            self.turn()
        until = self._clock() + linger_seconds
        while (self._present or finished_before) and self._clock() < until and not self._stopping:
            self.turn()
        status = "finished" if coordinator.finished else "offline"
        self._publish_state(status)
        self._publish_metrics()
        if self._linked or coordinator.finished:  # then the end was told, over a link
            self._channel.transport.flush(3.0)
        log.event("counters", **self.counters.values())
        log.event(status, round=self.state.round)
        return coordinator.finished

    def turn(self) -> None:
        """Handles what has arrived, and closes the round when it is due."""
        self._alive()
        coordinator = self._coordinator
        answers = [a for e in self._arrived() for a in self._handle(e)]
        self._store.commit()
        if self._greeting_due:  # not earlier: θ_shared may hold what has just arrived
            self._greeting_due = False
            self._publish_state("online")
            self._publish_shared()
        self._tell(answers)
        if self._store.journal_bytes > JOURNAL_LIMIT and self._settings.mode == "async":
            self._store.snapshot(self.state)
        now = self._clock()
        if coordinator.closes_at(now) <= now:
            self._close(now)
        if now >= self._metrics_due:
            self._publish_metrics()

    # --- what arrives ---------------------------------------------------------------------

    def _arrived(self) -> list[Event]:
        now = self._clock()
        wait = min(1.0, max(0.0, self._coordinator.closes_at(now) - now))
        events = []
        event = self._channel.receive(wait)
        while event is not None:
            events.append(event)
            event = self._channel.receive(0.0) if len(events) < BATCH else None
        return events

    def _handle(self, event: Event) -> list[_Answer]:
        match event:
            case Connected():
                self._linked = True
                self._log.event("connected")
                self._greeting_due = True
            case Disconnected(reason, final):
                if final:
                    raise LinkRefused(reason)
                self._linked = False
                self._log.event("disconnected", reason=reason)
            case Message(topic, payload):
                match self._topics.sender(topic):
                    case (device, "update"):
                        return [self._take_update(device, payload)]
                    case (device, "state"):
                        return self._take_birth(device, payload)
                    case None:
                        self.counters.refused[Reason.FOREIGN] += 1
            case Broken(topic, error):
                reason = Reason.OVERSIZED if isinstance(error, Oversized) else Reason.MALFORMED
                if sender := self._topics.sender(topic):
                    device, kind = sender
                    about = "join" if kind == "state" else "update"
                    return [self._refusal(device, about, Refused(reason, str(error)))]
        return []

    def _take_update(self, device: str, payload: bytes) -> _Answer:
        begin = self._clock()
        update = None
        try:
            update = self._contract.check_update(payload, device)
            outcome = self._coordinator.offer(update)
        except Refused as refused:
            claim = update or self._claim(Update, payload)
            return self._refusal(device, "update", refused, claim)
        self.counters.merge_seconds += self._clock() - begin
        if outcome is Outcome.ACCEPTED:
            self._store.append(payload)
            self.counters.updates_accepted += 1
            self._log.event("accepted", device=device, round=update.round, samples=update.samples)
        else:
            self.counters.updates_duplicate += 1
        return _Answer(self._verdict(device, "update", update), reply=True)

    def _claim(self, kind: type[C], payload: bytes) -> C | None:
        """What a refused message says of itself, so that its device knows which one is meant."""
        try:
            return from_bytes(kind, payload, limit=self._contract.largest_message)
        except WireError:
            return None

    def _take_birth(self, device: str, payload: bytes) -> list[_Answer]:
        if not payload:  # a cleared retained message
            return []
        try:
            state = self._contract.check_birth(payload, device)
        except Refused as refused:
            self._leave(device)
            return [self._refusal(device, "join", refused, self._claim(DeviceState, payload))]
        if not state.online:
            self._leave(device)
            return []
        if len(self._present) >= MAX_DEVICES and device not in self._present:
            full = Refused(Reason.FULL, f"the fleet has its {MAX_DEVICES} devices.")
            return [self._refusal(device, "join", full, state)]
        self._coordinator.join(device)
        if device not in self._present:
            self._log.event("joined", device=device, **_shown(state.about))
        self._present.add(device)
        self.counters.births_accepted += 1
        return [_Answer(self._verdict(device, "join", state), reply=True)]

    def _leave(self, device: str) -> None:
        self._coordinator.leave(device)
        if device in self._present:
            self._present.discard(device)
            self._log.event("left", device=device)

    def _refusal(
        self, device: str, about: str, refused: Refused, claim: Update | DeviceState | None = None
    ) -> _Answer:
        self.counters.refused[refused.reason] += 1
        name = device[:LONGEST_SHOWN]
        self._log.event("refused", device=name, reason=refused.reason, text=str(refused))
        return _Answer(self._verdict(device, about, claim, refused))

    def _verdict(
        self,
        device: str,
        about: str,
        answered: Update | DeviceState | None = None,
        refused: Refused | None = None,
    ) -> Verdict:
        """A birth is named by the fingerprint of its slice, an update by its nonce."""
        nonce = answered.nonce if isinstance(answered, Update) else ""
        nonce = answered.fingerprint if isinstance(answered, DeviceState) else nonce
        return Verdict(
            device=device,
            about=about,
            run=self.state.run,
            accepted=refused is None,
            round=answered.round if isinstance(answered, Update) else self.state.round,
            nonce=nonce[:ECHOED],
            reason=str(refused.reason) if refused else "",
            text=str(refused) if refused else "",
        )

    # --- what leaves ----------------------------------------------------------------------

    def _tell(self, answers: Sequence[_Answer]) -> None:
        # θ first, so that a device that has joined starts from this and not from an older one;
        # and once, however often a device has asked.
        if self._settings.mode == "async":
            for device in dict.fromkeys(a.verdict.device for a in answers if a.reply):
                self._channel.publish(self._topics.reply(device), self._shared())
        for answer in answers:
            # A name may be so long that there is no topic to answer it on.
            with contextlib.suppress(ValueError):
                topic = self._topics.verdict(answer.verdict.device)
                self._channel.publish(topic, to_bytes(answer.verdict))

    def _close(self, now: float) -> None:
        closed = self._coordinator.close(now)
        took = self._clock() - now
        self.counters.merge_seconds += took
        if not closed.merged:
            self.counters.rounds_extended += 1
            quorum = self._settings.quorum
            self._log.event(
                "extended", round=self.state.round, devices=closed.devices, quorum=quorum
            )
            return
        self._store.snapshot(self.state)
        self.counters.rounds_merged += 1
        self.counters.tensors_held_back += len(closed.held_back)
        self._log.event("merged", round=self.state.round, devices=closed.devices, seconds=took)
        if closed.held_back:
            self._log.event("held_back", tensors=list(closed.held_back))
        self._publish_shared()

    def _told(self) -> bool:
        """The end of the run is on the broker, and on disk."""
        if self._settings.mode == "async":  # a synchronous round was written when it was merged
            self._store.snapshot(self.state)
        self._publish_shared()
        return self._channel.transport.flush(10.0)

    def _shared(self) -> bytes:
        if self._encoded is None or self._encoded[0] != self.state.round:
            shared = Shared(
                run=self.state.run,
                round=self.state.round,
                fingerprint=self._contract.fingerprint,
                last=self._coordinator.finished,
                tensors=self._sent(self.state.shared),
            )
            self._encoded = self.state.round, to_bytes(shared)
        return self._encoded[1]

    def _sent(self, tensors: Tensors) -> dict[str, Array]:
        """θ_shared as devices get it; ours stays float32, so that small changes add up."""
        if self._downlink == "float32":
            return dict(tensors)
        return {name: to_half(value) for name, value in tensors.items()}

    def _publish_shared(self) -> None:
        self._channel.publish(self._topics.shared, self._shared(), retain=True)

    def _publish_state(self, status: str) -> None:
        state = announcement(status, self._contract, self._settings)
        self._channel.publish(self._topics.aggregator_state, state, retain=True)

    def _publish_metrics(self) -> None:
        self._metrics_due = self._clock() + METRICS_SECONDS
        transport, counters = self._channel.transport, self.counters
        counters.round = self.state.round
        counters.devices_present = len(self._present)
        counters.received_bytes = transport.received_bytes
        counters.sent_bytes = transport.sent_bytes
        counters.packets_dropped = transport.dropped
        text = metrics_text(counters.values())
        self._channel.publish(self._topics.aggregator_metrics, text.encode(), retain=True)

    # --- after a restart ------------------------------------------------------------------

    def _replay(self) -> None:
        """Offers what the journal holds once more; it was checked and accepted before."""
        replayed = 0
        for payload in self._store.journal():
            try:
                update = self._contract.read_checked(payload)
            except WireError:
                raise StoreError("the journal was written by another version.") from None
            self._coordinator.offer(update)
            replayed += 1
        if self._store.cut_bytes:
            self._log.event("journal_cut", bytes=self._store.cut_bytes)
        if replayed:
            self._log.event("replayed", updates=replayed, round=self.state.round)


def _shown(about: Mapping[str, Any]) -> dict[str, str]:
    """Of what a birth says of its device, what can be a field and a text of a log."""
    found = ((key, about.get(key)) for key in SHOWN)
    return {k: v[:LONGEST_SHOWN] for k, v in found if isinstance(v, str)}
