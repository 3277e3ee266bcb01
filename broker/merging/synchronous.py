"""Algorithm 2: devices train from the same θ_shared, and a round merges what they learnt."""

from __future__ import annotations

import math

from broker.merging.coordinator import Closed, Coordinator, Settings, State, entry_of
from broker.merging.merge import tally
from broker.protocol.messages import Reason, Refused, Update


class Synchronous(Coordinator):
    """Round r takes one update from each device that starts from θ_r.

    It closes as soon as every device that is present has sent (and at least `quorum` have), or at
    its deadline. A device that pauses is not waited for. One that it waited for in vain is not
    waited for again before it sends something. At a deadline with fewer than `quorum` updates
    nothing changes: the round is extended by another deadline. Updates for a round that is over
    are refused as late; the device then continues from the newest θ_shared.
    """

    replies_individually = False

    def __init__(self, settings: Settings, state: State, now: float) -> None:
        super().__init__(settings, state, now)
        self._tally = tally(settings.merge)
        self._received: set[str] = set()
        # After a restart, devices of the last rounds are waited for until they join or leave.
        self._expected = {d for d, entry in state.ledger.items() if entry.round >= state.round - 1}
        self._deadline = now + settings.deadline_seconds

    @classmethod
    def replay_identity(cls, settings: Settings) -> str:
        """Nothing: a replay only fills the open round, which is merged as it closes."""
        return ""

    @property
    def state_is_complete(self) -> bool:
        return not self._received

    def join(self, device: str, *, receives: bool = False, waiting: bool = False) -> bool:
        is_news = super().join(device, receives=receives, waiting=waiting)
        self._expected.discard(device)
        return is_news

    def leave(self, device: str) -> bool:
        self._expected.discard(device)
        return super().leave(device)

    def accept(self, update: Update) -> None:
        state = self.state
        last = state.ledger.get(update.device)
        if update.round < state.round:
            raise Refused(
                Reason.LATE, f"the update is for round {update.round}; this is {state.round}."
            )
        if update.round > state.round:
            raise Refused(
                Reason.EARLY, f"the update is for round {update.round}; this is {state.round}."
            )
        if last is not None and last.round == update.round:
            raise Refused(Reason.SECOND, "this device's update for the round is already in.")
        self._check_newcomer(update.device)
        self._tally.add(update.device, update.tensors, update.samples, update.squares)
        self._received.add(update.device)
        state.ledger[update.device] = entry_of(update)

    def closes_at(self, now: float) -> float:
        if self.finished:
            return math.inf
        enough = len(self._received) >= self.settings.quorum
        complete = (
            self._received.issuperset(self.present.senders) and self._expected <= self._received
        )
        return now if enough and complete else self._deadline

    def close(self, now: float) -> Closed:
        self._deadline = now + self.settings.deadline_seconds
        devices = len(self._received)
        if devices < self.settings.quorum:
            return Closed(merged=False, devices=devices)
        silent = self.present.forget_silent(self._received)
        self._expected &= self._received
        change, held_back = self._tally.merged()
        state = self.state
        state.shared, state.slots = self.settings.optimizer.step(state.shared, change, state.slots)
        state.round += 1
        self._note_limited(sorted(self._tally.clipped), sorted(self._tally.bounded))
        self._tally = tally(self.settings.merge)
        self._received = set()
        return Closed(merged=True, devices=devices, held_back=held_back, silent=silent)
