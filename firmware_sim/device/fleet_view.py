"""What a device believes of its fleet, from the messages it has received; pure, no I/O."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from broker.protocol.messages import AggregatorState, Shared, Verdict, from_bytes
from broker.protocol.topics import Topics
from firmware_sim.device.plausibility import check_state
from firmware_sim.errors import Implausible

_RUNS = 4  # whose newest epoch is known
_FENCE_SECONDS = 90.0  # three intervals of the aggregator's state


class FleetView:
    """The newest believed message of each kind; messages may arrive twice, late and in any order.

    With a key, messages that its holder has not signed raise `Unsigned`. A message that the device
    should not act upon raises `Implausible`. Neither changes anything.
    """

    def __init__(
        self,
        device: str,
        topics: Topics,
        *,
        limit: int,
        fingerprint: str,
        key: bytes | None = None,
        judge: Callable[[Shared, AggregatorState], None] = lambda shared, state: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`judge` raises `Implausible` for a θ_shared of the aggregator's run not to be adopted."""
        self._device = device
        self._topics = topics
        self._limit = limit
        self._fingerprint = fingerprint
        self._key = key
        self._judge = judge
        self._clock = clock
        self._waiting: dict[str, Shared] = {}  # by run, not judged yet
        self._epochs: dict[str, tuple[int, float]] = {}  # by run: the newest, and when it came
        self._fenced: AggregatorState | None = None  # the last one that a newer epoch kept out
        self.shared: Shared | None = None  # the newest θ_shared of the aggregator's run
        self.aggregator: AggregatorState | None = None
        self.join: Verdict | None = None
        self.verdict: Verdict | None = None  # the last one about an update

    @property
    def lacks_shared(self) -> bool:
        """Whether the aggregator has a θ_shared that has not come.

        One that is said to be offline is asked too: that may be forged, or costs nothing.
        """
        if self.aggregator is None:
            return False
        return self.shared is None or self.shared.round < self.aggregator.round

    @property
    def joined(self) -> bool:
        """Whether the aggregator of this run has accepted this device's birth."""
        mine = self.aggregator and self.join and self.join.run == self.aggregator.run
        return bool(mine and self.join and self.join.accepted)

    @property
    def is_served(self) -> bool:
        """Whether an aggregator is there that has accepted this device."""
        return self.joined and self.aggregator is not None and self.aggregator.status == "online"

    def is_open(self, run: str, round: int) -> bool:
        """Whether an update for that round can still count, as far as is known."""
        shared = self.shared
        if shared is None or self.aggregator is None:
            return True
        if shared.run != run or shared.last:
            return False
        return self.aggregator.mode == "async" or shared.round <= round

    def why_nothing_comes(self, *, unsigned: int) -> str:
        """Returns why the device has no θ_shared to train from, of `unsigned` messages so many."""
        if self._key is not None and self.aggregator is None and unsigned:
            return "the aggregator does not sign with the fleet's key; start it with --signing-key."
        if self.joined and self.lacks_shared:
            return "joined, but the broker has delivered no θ_shared; asked the aggregator for it."
        return {
            "offline": "the fleet has no aggregator at the moment.",
            "finished": "the fleet has finished without this device; waiting for a new run.",
        }.get(self.aggregator.status if self.aggregator else "offline", "")

    def take(self, topic: str, payload: bytes) -> None:
        """Stores what a message says; raises `WireError` if it is not to be believed."""
        topics, device, key = self._topics, self._device, self._key
        if topic == topics.aggregator_state:
            self._take_state(from_bytes(AggregatorState, payload, topic=topic, key=key))
        elif topic in (topics.shared, topics.reply(device)):  # signed for the topic of all
            shared = from_bytes(Shared, payload, limit=self._limit, topic=topics.shared, key=key)
            self._take_shared(shared)
        elif topic == topics.verdict(device):
            verdict = from_bytes(Verdict, payload, topic=topic, key=key)
            if verdict.about != "join":
                self.verdict = verdict
            elif verdict.nonce in ("", self._fingerprint):  # otherwise: of an earlier bundle
                self.join = verdict

    def forget_shared(self) -> None:
        """Drops θ_shared: the aggregator has said that it is not in that round."""
        self.shared = None

    def look_behind_fence(self) -> None:
        """Believes a state that was kept out by an epoch which nobody has repeated since."""
        if state := self._fenced:
            with contextlib.suppress(Implausible):
                self._take_state(state)

    def _take_state(self, state: AggregatorState) -> None:
        check_state(state, self.aggregator if self.joined else None)
        self._check_epoch(state)
        if self.aggregator is None or self.aggregator.run != state.run:
            self.shared = None
        self.aggregator = state
        if shared := self._waiting.pop(state.run, None):
            self._take_shared(shared)

    def _check_epoch(self, state: AggregatorState) -> None:
        """An epoch counts from the first state "online" of it on, as an aggregator begins."""
        now = self._clock()
        newest, seen = self._epochs.pop(state.run, (0, now))
        fenced = state.epoch < newest and now - seen < _FENCE_SECONDS
        if fenced or state.status != "online":
            self._epochs[state.run] = newest, seen
        else:
            self._epochs[state.run] = state.epoch, now
        self._fenced = state if fenced else None
        if fenced:
            raise Implausible("this is the state of an aggregator that a newer one has replaced.")
        if len(self._epochs) > _RUNS:
            del self._epochs[next(iter(self._epochs))]

    def _take_shared(self, shared: Shared) -> None:
        """Stores those of other runs too: a new run's may arrive before the state that names it."""
        state = self.aggregator
        if state is None or state.run != shared.run or (shared.last and not _ended(state, shared)):
            self._let_wait(shared)
            return
        known = self.shared
        if known is not None and (shared.round, shared.last) <= (known.round, known.last):
            return
        self._judge(shared, state)
        self.shared = shared

    def _let_wait(self, shared: Shared) -> None:
        known = self._waiting.pop(shared.run, shared)
        newer = (shared.round, shared.last) >= (known.round, known.last)
        self._waiting[shared.run] = shared if newer else known
        own = self.aggregator.run if self.aggregator else ""
        for run in [run for run in self._waiting if run != own][:-1]:
            del self._waiting[run]  # of other runs the last one that came may be the next


def _ended(state: AggregatorState, shared: Shared) -> bool:
    """Whether the aggregator's state says, too, that this θ_shared is the last one.

    One of an earlier version, without an instance, says so only after its devices have left.
    """
    if not state.instance:
        return True
    return state.status == "finished" and state.round == shared.round
