"""The aggregator's loop: a coordinator between a channel and a store.

One poll of the loop receives what has arrived, checks it, offers it to the coordinator, writes
accepted updates to the journal, makes the journal durable, and only then answers the devices. So
everything that was acknowledged survives, and what is lost was never acknowledged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

from broker.aggregator.answers import Answer, accepted, readable, refused
from broker.aggregator.contract import Contract
from broker.aggregator.epochs import Epochs, Standing
from broker.aggregator.membership import Instances, Members
from broker.aggregator.publisher import Publisher
from broker.aggregator.records.record import Record
from broker.aggregator.signing import Signing
from broker.aggregator.steering.orders import Orders
from broker.aggregator.storage.store import Store
from broker.errors import LinkRefused, Oversized, Superseded, WireError
from broker.log import Log
from broker.merging.coordinator import Coordinator, Outcome, State
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    Reason,
    Refused,
    Update,
    from_bytes,
)
from broker.protocol.topics import Topics
from broker.transport.channel import Broken, Channel, Event, Message
from broker.transport.transport import Connected, Disconnected

BATCH = 64  # events handled between two commits
JOURNAL_LIMIT = 64 * 2**20  # bytes; a snapshot replaces a longer journal as soon as it can
METRICS_SECONDS = 5.0
REPORT_SECONDS = 2.0  # at least, between two reports
STATE_SECONDS = 30.0  # between two publications of the state, whatever happens
STATE_PAUSE = 1.0  # seconds at least, when others write on its topic


class Aggregator:
    """Runs until the last round is merged or `stop` is called."""

    def __init__(
        self,
        *,
        contract: Contract,
        coordinator: Coordinator,
        store: Store,
        channel: Channel,
        topics: Topics,
        epochs: Epochs,
        log: Log,
        downlink: str = "float32",
        members: Members | None = None,
        signing: Signing | None = None,
        clock: Callable[[], float] = time.monotonic,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`alive` is called in every poll, which shows that the loop has not stopped.

        Without `members` every device may join; with `signing` everything that devices act upon
        is signed.
        """
        self.record = Record(log)
        self.counters = self.record.counters
        self._epochs = epochs
        self._members = members
        self._instances = Instances()
        self._signing = signing
        self._contract = contract
        self._coordinator = coordinator
        self._store = store
        self._channel = channel
        self._topics = topics
        self._log = log
        self._clock = clock
        self._alive = alive
        self._publish = Publisher(
            channel=channel,
            topics=topics,
            contract=contract,
            coordinator=coordinator,
            epochs=epochs,
            downlink=downlink,
            signer=signing.signer if signing else None,
        )
        self._stopping = False
        self._connected = False
        self._announcement_due = False
        self._metrics_due = self._report_due = self._state_due = 0.0
        self._orders = Orders(topics, key=signing.key if signing else None)
        self._state_published = -math.inf

    @property
    def state(self) -> State:
        return self._coordinator.state

    def stop(self) -> None:
        """Ends `run` after the current poll; may be called from a signal handler."""
        self._stopping = True

    def run(self, *, linger_seconds: float = 0.0) -> bool:
        """Returns whether the last round is merged; if not, `stop` was called.

        After the last round it goes on for `linger_seconds` or until all devices have left: a
        broker that ends with this process must not end before they have their result.
        """
        log, coordinator = self._log, self._coordinator
        log.event(
            "start",
            fleet=self._topics.fleet,
            mode=coordinator.settings.mode,
            round=self.state.round,
            run=self.state.run,
        )
        finished_before = coordinator.finished
        if finished_before:
            text = "this --state has all its rounds; give more --rounds, or another --state."
            log.event("nothing_to_do", text=text)
        while not self._stopping and not coordinator.finished:
            self.poll()
        while coordinator.finished and not self._stopping and not self._save_result():
            self.poll()
        until = self._clock() + linger_seconds
        while (
            (coordinator.present or finished_before)
            and self._clock() < until
            and not self._stopping
        ):
            self.poll()
        status = "finished" if coordinator.finished else "offline"
        self._publish.state(gone=True)
        self._publish_metrics()
        self._publish_report()
        if self._connected or coordinator.finished:  # without a link there is nothing to wait for
            self._publish.flush(3.0)
        log.event("counters", **self.counters.values())
        log.event(status, round=self.state.round)
        return coordinator.finished

    def poll(self) -> None:
        """Handles what has arrived, and closes the round when it is due."""
        self._alive()
        answers = [answer for event in self._arrived() for answer in self._handle(event)]
        self._store.commit()
        if self._announcement_due:  # not earlier: θ_shared may hold what has just arrived
            self._announcement_due = False
            self._publish_state()
            self._publish.shared()
        self._send(answers)
        if self._store.journal_bytes > JOURNAL_LIMIT:
            self._replace_journal()
        now = self._clock()
        if self._coordinator.closes_at(now) <= now:
            self._close(now)
        self.record.limited(self._coordinator.limited(), self.state.round)
        if now >= self._metrics_due:
            self._publish_metrics()
        if self.record.report.changed and now >= self._report_due:
            self._publish_report()
        if self._connected and now >= self._state_due:
            self._publish_state()

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

    def _handle(self, event: Event) -> list[Answer]:
        match event:
            case Connected():
                self._connected = True
                self._log.event("connected")
                self._announcement_due = True
            case Disconnected(reason, final):
                if final:
                    raise LinkRefused(reason)
                self._connected = False
                self._epochs.link_lost()
                self._log.event("disconnected", reason=reason)
            case Message(topic, payload) if topic == self._topics.aggregator_state:
                self._see_state(payload)
            case Message(topic, payload) if topic == self._topics.aggregator_command:
                if answer := self._orders.take(payload):
                    self._publish.answer(answer)
                    self._stopping = self._stopping or answer.done
            case Message(topic, payload):
                match self._topics.sender(topic):
                    case (device, "update"):
                        return [self._take_update(device, payload)]
                    case (device, "state"):
                        return self._take_birth(device, payload)
                    case (device, "metrics"):
                        self.record.scraped.metrics(device, payload)
                    case None:
                        self.counters.refused[Reason.FOREIGN] += 1
            case Broken(topic, error):
                reason = Reason.OVERSIZED if isinstance(error, Oversized) else Reason.MALFORMED
                if sender := self._topics.sender(topic):
                    device, kind = sender
                    about: Literal["join", "update"] = "join" if kind == "state" else "update"
                    return [self._refuse(device, about, Refused(reason, str(error)), None)]
        return []

    def _take_update(self, device: str, payload: bytes) -> Answer:
        begin = self._clock()
        update = None
        try:
            self._check_member(device)
            update = self._contract.check_update(payload, device)
            self._coordinator.join(device)  # it is there, in time or late
            behind = self.state.round - update.round
            outcome = self._coordinator.offer(update)
        except Refused as refusal:
            message = update or readable(Update, payload, self._contract.largest_message)
            return self._refuse(device, "update", refusal, message)
        self.counters.merge_seconds += self._clock() - begin
        if outcome is Outcome.ACCEPTED:
            self._store.append(payload)
            self.record.accepted(update, bytes=len(payload), behind=behind)
        else:
            self.counters.updates_duplicate += 1
        return self._accept(update)

    def _take_birth(self, device: str, payload: bytes) -> list[Answer]:
        if not payload:  # the operator has removed it, and cleared what was retained
            self.record.report.forget(device)
            return []
        state = None
        try:
            self._check_member(device)
            state = self._contract.check_birth(payload, device)
            if not state.online:
                self._leave(device)
                return []
            self._instances.check(device, state.instance)
            is_news = self._coordinator.join(
                device, receives=state.receives_only, waiting=bool(state.waiting)
            )
        except Refused as refusal:
            self._leave(device)
            message = state or readable(DeviceState, payload, self._contract.largest_message)
            return [self._refuse(device, "join", refusal, message)]
        self.record.born(state, is_news=is_news)
        return [self._accept(state)]

    def _check_member(self, device: str) -> None:
        if self._members is not None:
            self._members.check(device)

    def _see_state(self, payload: bytes) -> None:
        """What stands on the broker as the aggregator's state may be ours, forged, or newer."""
        key = self._signing.key if self._signing else None
        try:
            seen = from_bytes(
                AggregatorState, payload, topic=self._topics.aggregator_state, key=key
            )
        except WireError:
            seen = None
        match self._epochs.judge(seen, signed=key is not None):
            case Standing.SUPERSEDED:
                raise Superseded(
                    f"a newer aggregator has the fleet {self._topics.fleet!r}; this one ends."
                )
            case Standing.BEHIND:
                assert seen is not None
                self._epochs.raise_above(seen.epoch)
                self._state_due = 0.0
            case Standing.OTHER:
                self.counters.states_overwritten += 1
                self._state_due = min(self._state_due, self._state_published + STATE_PAUSE)

    def _leave(self, device: str) -> None:
        self.record.left(device, was_there=self._coordinator.leave(device))

    def _accept(self, message: Update | DeviceState) -> Answer:
        return accepted(message, run=self.state.run, round=self.state.round)

    def _refuse(
        self,
        device: str,
        about: Literal["join", "update"],
        refusal: Refused,
        message: Update | DeviceState | None,
    ) -> Answer:
        self.record.refused(device, refusal, message)
        run, round = self.state.run, self.state.round
        return refused(device, about, refusal, message, run=run, round=round)

    # --- what leaves ----------------------------------------------------------------------

    def _send(self, answers: Sequence[Answer]) -> None:
        # θ_shared before the verdict: a device that has joined starts from it, not from an older
        # one. And once for each device, however many answers it gets.
        everybody = self._coordinator.replies_individually
        replies = (a for a in answers if a.asked or (everybody and a.reply))
        self._publish.replies(dict.fromkeys(a.verdict.device for a in replies))
        self._publish.verdicts(answer.verdict for answer in answers)

    def _close(self, now: float) -> None:
        closed = self._coordinator.close(now)
        seconds = self._clock() - now
        if closed.merged:
            self._store.snapshot(self.state)
        quorum = self._coordinator.settings.quorum
        self.record.closed(closed, round=self.state.round, quorum=quorum, seconds=seconds)
        if closed.merged:
            self._publish.shared()

    def _save_result(self) -> bool:
        """Returns whether the last θ_shared is on the disk and on the broker."""
        self._replace_journal()
        self._publish.shared()
        return self._publish.flush(10.0)

    def _replace_journal(self) -> None:
        """Replaces the journal by a snapshot, if the coordinator's state allows it."""
        if self._store.journal_bytes and self._coordinator.state_is_complete:
            self._store.snapshot(self.state)

    def _publish_state(self) -> None:
        self._state_published = self._clock()
        self._state_due = self._state_published + STATE_SECONDS
        self._publish.state()

    def _publish_metrics(self) -> None:
        self._metrics_due = self._clock() + METRICS_SECONDS
        present, transport = self._coordinator.present, self._channel.transport
        self.counters.take_stock(self.state.round, present, transport)
        values = self.record.scraped.aggregator = self.counters.values()
        self._publish.metrics(values)

    def _publish_report(self) -> None:
        self._report_due = self._clock() + REPORT_SECONDS
        settings = self._coordinator.settings
        self._publish.report(self.record.report.message(self.state, settings))
