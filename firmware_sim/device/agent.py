"""The device agent: algorithm 1, in a fleet whose parts may restart or be unreachable.

    join → wait for θ_shared → train a round → send the update → wait for the verdict → …

Every message may be lost or arrive twice. An update without an answer is sent again with the same
nonce, the aggregator applies it once, and every update is on disk before it is sent. Any message
may be forged: what is not signed (where there is a key) or not plausible is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from broker.errors import WireError
from broker.log import Log
from broker.protocol.messages import Reason, Shared, Update, from_bytes
from broker.protocol.quantisation import widened
from broker.protocol.slice import Slice
from broker.protocol.topics import Topics
from broker.transport.channel import Broken, Channel, Message
from broker.transport.transport import Connected, Disconnected
from firmware_sim.device.adoption import Adoption
from firmware_sim.device.compression import Compression
from firmware_sim.device.fleet_view import FleetView
from firmware_sim.device.ignored import Ignored
from firmware_sim.device.publisher import Publisher
from firmware_sim.device.refusals import GO_ON, Refusals
from firmware_sim.errors import FleetRefused
from firmware_sim.steering.steering import Steering
from firmware_sim.training.checkpoint import Checkpoint
from firmware_sim.training.rounds import RoundOver, Rounds
from firmware_sim.updating.updates import NO_UPDATES, NoUpdates, Updates

_WAIT = 1.0  # seconds; the longest wait for one message
_ASK_SECONDS = 3.0  # after joining, before a device asks for θ_shared
_FLUSH = 3.0  # seconds
_SHORT_FLUSH = 0.5  # seconds; when the link is known to be down


class Agent:
    """One device of a fleet; `run` returns when the fleet has finished."""

    def __init__(
        self,
        *,
        device: str,
        shared: Slice,
        rounds: Rounds,
        channel: Channel,
        topics: Topics,
        limit: int,
        log: Log,
        publish: Publisher,
        steering: Steering,
        compression: Compression,
        sent: Slice | None = None,  # what it trains of `shared`; if nothing, it is a receiver
        key: bytes | None = None,
        guard: bool = False,
        clock: Callable[[], float] = time.monotonic,
        updates: Updates | NoUpdates = NO_UPDATES,
    ) -> None:
        """With `key` it believes only signed messages; for `guard` see `adoption.py`."""
        self._device = device
        self._sent = shared if sent is None else sent
        self._rounds = rounds
        self._learner = rounds.learner
        self._channel = channel
        self._topics = topics
        self._limit = limit
        self._log = log
        self._compression = compression
        self._clock = clock
        self._patience = min(_WAIT, rounds.plan.resend_seconds)
        self._first_patience = min(_ASK_SECONDS, rounds.plan.resend_seconds)
        self._publish = publish
        self._steering = steering
        self._updates = updates
        self._known_aggregator = ""  # the instance that has seen our birth
        self._adoption = Adoption(rounds, log, guard=guard)
        self._view = FleetView(
            device,
            topics,
            limit=limit,
            fingerprint=shared.fingerprint,
            key=key,
            judge=self._adoption.judge,
            clock=clock,
        )
        self._ignored = Ignored(log, clock)
        self._refusals = Refusals()  # of the birth
        self._linked = False
        self._run = self._accepted = ""  # of the checkpoint; nonce of the last accepted update
        self._unanswered = b""  # the update that waits for its verdict
        self._after: tuple[str, int] | None = None  # run and round of the last update
        self._training: tuple[str, int] | None = None  # run and round that is being trained
        rounds.idle, rounds.waits.tell = self._idle, self._tell

    def run(self) -> dict[str, float]:
        """Takes part until the last round; returns the final scores."""
        self._steering.check()
        left = self._rounds.resume()
        self._run = left.run if left else ""
        shared = self._next_shared()
        if left and left.outbox and left.run == shared.run and left.round <= shared.round:
            self._deliver(left.outbox)
            shared = self._next_shared()
        while not shared.last:
            if (update := self._train(shared, left)) and self._deliver(update):
                self._updates.finished_round()
            left = None
            shared = self._next_shared()
        return self._finish(shared)

    def leave(self) -> None:
        """Announces that the device leaves, so that no round waits for it."""
        self._publish.gone()
        self._channel.transport.flush(_FLUSH if self._linked else _SHORT_FLUSH)

    def close(self) -> None:
        self._channel.close()

    # --- one round ------------------------------------------------------------------------

    def _train(self, shared: Shared, left: Checkpoint | None) -> bytes:
        """Trains the round that starts from `shared`; the update is durable when this returns.

        Returns nothing if the device does not send what it has learnt: it is a receiver, or it did
        not start from `shared`, and Δ from another θ would be no update of it.
        """
        assert self._view.aggregator is not None
        exchange, run, number = self._view.aggregator.exchange, shared.run, shared.round
        scores: dict[str, float] = {}
        adopted = True
        # In mode async no round is awaited, so one from the checkpoint counts whenever it is done.
        waiting = self._view.aggregator.mode != "async"
        if left and left.base and left.run == run and not (waiting and left.round != number):
            base, done, number = left.base, left.steps_done, left.round
        else:
            if left and left.base:
                self._learner.learnt(left.base, exchange)  # of a round that is over: not sent
            scores, adopted = self._adoption.adopt(shared, self._view.aggregator)
            base, done = self._learner.shared(), 0
        self._compression.enter(run)
        self._training = run, number
        try:
            loss = self._rounds.train(
                run=run, round=number, exchange=exchange, base=base, done=done
            )
        except RoundOver:
            self._learner.learnt(base, exchange)  # not sent
            return b""
        finally:
            self._training = None
        learnt = self._learner.learnt(base, exchange)
        if not adopted or not self._sent.tensors:
            self._after = run, number
            self._rounds.save(run=run, round=number, done=self._rounds.plan.steps)
            self._publish_metrics(round=number, train_loss=loss, **scores)
            if not self._sent.tensors:
                self._updates.finished_round()
            return b""
        update = self._compression.update(
            learnt,
            device=self._device,
            run=run,
            round=number,
            samples=self._learner.task.samples,
            exchange=exchange,
            fingerprint=self._sent.fingerprint,
            everything=shared.fingerprint == self._sent.fingerprint,
        )
        self._rounds.save(run=run, round=number, done=self._rounds.plan.steps, outbox=update)
        self._publish_metrics(round=number, train_loss=loss, **scores)
        return update

    def _deliver(self, payload: bytes) -> bool:
        """Sends an update until it is answered or its round is over; returns if it is accepted."""
        update = from_bytes(Update, payload, limit=self._limit)
        self._unanswered = payload
        self._after = update.run, update.round
        refusals = Refusals()
        self._send()
        sent = self._clock()
        while not self._answered(update, refusals):
            self._look(self._patience)
            if self._clock() - sent > self._patience_with(refusals) and self._all_is_sent():
                self._log.event("resending", round=update.round)
                self._send()
                refusals.asked()
                sent = self._clock()
        self._unanswered = b""
        return self._accepted == update.nonce

    def _answered(self, update: Update, refusals: Refusals) -> bool:
        verdict = self._view.verdict
        if verdict is not None and verdict.nonce == update.nonce:
            self._view.verdict = None
            if verdict.accepted:
                self._accepted = update.nonce
                return True
            self._log.event("refused", round=update.round, reason=verdict.reason)
            if verdict.reason == Reason.EARLY:  # θ_shared was forged, or a backup was restored
                self._view.forget_shared()
                self._after = None
            if verdict.reason in GO_ON:
                return True
            if refusals.refused():
                raise FleetRefused(f"the aggregator refused an update: {verdict.text}")
        return not self._view.is_open(update.run, update.round)

    def _finish(self, shared: Shared) -> dict[str, float]:
        assert self._view.aggregator is not None
        scores, _ = self._adoption.adopt(shared, self._view.aggregator)
        self._rounds.save(run=shared.run, round=shared.round, done=0)
        self._publish_metrics(round=shared.round, **scores)
        self._log.event("finished", round=shared.round, **scores)
        return scores

    # --- the fleet ------------------------------------------------------------------------

    def _next_shared(self) -> Shared:
        """Waits for a θ_shared that this device has not yet sent an update for."""
        asked, first, reported = self._clock(), True, False
        self._log.progress("waiting for the fleet")
        while True:
            while self._look(0.0):
                pass  # after an outage many may wait, and only the newest is of use
            if self._updates.is_ready and self._view.is_served and self._rounds.waits.may_begin():
                self._updates.begin_trial(self._publish.rollout)
            shared = self._view.shared
            if shared is not None and self._is_next(shared):
                return replace(shared, tensors=widened(shared.tensors))
            self._look(self._patience)
            patience = self._first_patience if first else self._patience_with(self._refusals)
            if self._clock() - asked > patience and self._all_is_sent():
                self._view.look_behind_fence()
                self._announce()  # so that a lost verdict or reply is sent again
                if self._view.lacks_shared:
                    self._adoption.asked()
                asked, first = self._clock(), False
                why = self._view.why_nothing_comes(unsigned=self._ignored.unsigned)
                if why and not reported:
                    self._log.event("waiting", reason=why)
                    reported = True

    def _patience_with(self, refusals: Refusals) -> float:
        """Seconds until the device asks again; a refusal is to be confirmed soon."""
        return self._first_patience if refusals.pending else self._rounds.plan.resend_seconds

    def _is_next(self, shared: Shared) -> bool:
        if shared.last:  # of a run of this device, not a retained message of an older one
            return self._view.joined or shared.run == self._run
        # One that cannot train at the moment takes the θ_shared that is the newest when it can.
        if not self._view.joined or not self._rounds.waits.may_begin():
            return False
        return self._after is None or shared.run != self._after[0] or shared.round > self._after[1]

    def _look(self, timeout: float) -> bool:
        """Handles one event; returns False if there was none within `timeout` seconds."""
        self._rounds.check_stop()
        event = self._channel.receive(timeout)
        match event:
            case Connected():
                self._linked = True
                self._log.event("connected")
                held = not self._all_is_sent()  # the transport sends it again itself
                self._announce()
                if not held:
                    self._send()
            case Disconnected(reason, final):
                self._linked = False
                if final:
                    raise FleetRefused(reason)
                self._log.event("disconnected", reason=reason)
            case Message(topic, payload):
                self._learn_from(topic, payload)
            case Broken(topic, error):
                self._ignored.count(topic, error)
        return event is not None

    def _learn_from(self, topic: str, payload: bytes) -> None:
        was_joined, last_join = self._view.joined, self._view.join
        try:
            if answer := self._steering.take(topic, payload):
                self._publish.answer(answer)
            if said := self._updates.take(topic, payload):
                self._publish.rollout(said)
            self._view.take(topic, payload)
        except WireError as error:
            self._ignored.count(topic, error)
        self._steering.check()
        join, aggregator = self._view.join, self._view.aggregator
        if aggregator and aggregator.status == "online" and self._is_new(aggregator.instance):
            self._announce()  # not every broker has given it the retained birth
        if join and join is not last_join and aggregator and join.run == aggregator.run:
            if join.accepted:
                self._refusals.accepted()
            elif self._refusals.refused():
                raise FleetRefused(f"the aggregator refused this device: {join.text}")
        if self._view.joined and not was_joined:
            self._log.event("joined", run=join.run if join else "")

    def _is_new(self, instance: str) -> bool:
        """Returns whether an aggregator has taken the place of the one that knows this device."""
        known, self._known_aggregator = self._known_aggregator, instance
        return bool(known) and known != instance

    def _all_is_sent(self) -> bool:
        """Whether the transport's queue is empty; otherwise copies would pile up in it."""
        return self._linked and self._channel.transport.flush(0.0)

    def _announce(self) -> None:
        """Publishes the birth; asks for θ_shared too, if the broker has not delivered the newest.

        Not every broker delivers retained messages to a subscription with a wildcard.
        """
        self._refusals.asked()
        self._publish.birth(asks=self._view.lacks_shared)

    def _idle(self, seconds: float) -> None:
        """Takes part in everything but training; a fleet that has finished ends the wait."""
        self._look(seconds)
        if self._view.shared is not None and self._view.shared.last:
            self._check_open()

    def _tell(self) -> None:
        """Publishes that training waits and why, or that it goes on."""
        self._announce()
        self._publish_metrics()
        if self._rounds.waits.told is None:
            self._check_open()

    def _check_open(self) -> None:
        """Raises `RoundOver` if nobody waits any more for the round that is being trained."""
        if self._training and not self._view.is_open(*self._training):
            raise RoundOver

    def _send(self) -> None:
        if self._unanswered:
            self._publish.update(self._unanswered)

    def _publish_metrics(self, **values: float) -> None:
        values |= {
            "ignored_unsigned": self._ignored.unsigned,
            "ignored_implausible": self._ignored.implausible,
            "score_collapsed": self._adoption.collapses,
        }
        self._publish.metrics(values)
