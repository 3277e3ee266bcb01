"""Algorithm 2: devices train from the same θ_shared, and a round merges what they learnt."""

from __future__ import annotations

import math

from broker.merging.coordinator import (
    Closed,
    Outcome,
    Settings,
    State,
    check_newcomer,
    entry_of,
    is_finished,
)
from broker.merging.merge import tally
from broker.protocol.messages import Reason, Refused, Update


class Synchronous:
    """Round r takes one update from each device that starts from θ_r.

    It closes as soon as every device that is present has sent (and at least `quorum` have), or at
    its deadline. At a deadline below quorum nothing changes: the round goes on for another
    deadline. Updates for a round that is over are refused as late; the device takes the newest
    θ_shared and goes on.
    """

    def __init__(self, settings: Settings, state: State, now: float) -> None:
        self.settings = settings
        self.state = state
        self._tally = tally(settings.merge)
        self._received: set[str] = set()
        # After a restart: whoever took part before is taken to be there until it says otherwise.
        self._present = {d for d, entry in state.ledger.items() if entry.round >= state.round - 1}
        self._deadline = now + settings.deadline_seconds

    @property
    def finished(self) -> bool:
        return is_finished(self.settings, self.state)

    def join(self, device: str) -> None:
        self._present.add(device)

    def leave(self, device: str) -> None:
        self._present.discard(device)

    def offer(self, update: Update) -> Outcome:
        state = self.state
        last = state.ledger.get(update.device)
        if last is not None and (last.round, last.nonce) == (update.round, update.nonce):
            return Outcome.DUPLICATE
        if self.finished:
            raise Refused(Reason.FINISHED, f"the fleet has finished after round {state.round}.")
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
        check_newcomer(update.device, state.ledger)
        self._tally.add(update.device, update.tensors, update.samples)
        self._received.add(update.device)
        state.ledger[update.device] = entry_of(update)
        return Outcome.ACCEPTED

    def closes_at(self, now: float) -> float:
        if self.finished:
            return math.inf
        complete = len(self._received) >= self.settings.quorum and self._present <= self._received
        return now if complete else self._deadline

    def close(self, now: float) -> Closed:
        self._deadline = now + self.settings.deadline_seconds
        devices = len(self._received)
        if devices < self.settings.quorum:
            return Closed(merged=False, devices=devices)
        change, held_back = self._tally.merged()
        state = self.state
        state.shared, state.slots = self.settings.optimizer.step(state.shared, change, state.slots)
        state.round += 1
        self._tally = tally(self.settings.merge)
        self._received = set()
        return Closed(merged=True, devices=devices, held_back=held_back)
