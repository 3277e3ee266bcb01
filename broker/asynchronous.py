"""Algorithm 3: every update is applied at once, and its device alone gets the new θ_shared."""

from __future__ import annotations

import math

from broker.coordinator import (
    Closed,
    Outcome,
    Settings,
    State,
    check_newcomer,
    entry_of,
    is_finished,
)
from broker.merge import clipped, scaled
from broker.messages import Reason, Refused, Update
from broker.staleness import staleness_weight


class Asynchronous:
    """Every accepted update is a round of its own: θ ← θ + w(s) · α · Δ.

    s = merges since the device received its θ; w is the staleness rule.
    α by merge rule, for each tensor over the devices heard so far that hold it:
      sum      1, as algorithm 3 is printed
      mean     1 / K
      samples  n_k / Σ_j n_j
    so that K devices that each send once move θ as far as one synchronous round would.
    """

    def __init__(self, settings: Settings, state: State, now: float) -> None:
        self.settings = settings
        self.state = state

    @property
    def finished(self) -> bool:
        return is_finished(self.settings, self.state)

    def join(self, device: str) -> None:
        """Presence does not matter here: nobody waits for anybody."""

    def leave(self, device: str) -> None:
        """As for `join`."""

    def offer(self, update: Update) -> Outcome:
        state = self.state
        last = state.ledger.get(update.device)
        if last is not None and (last.round, last.nonce) == (update.round, update.nonce):
            return Outcome.DUPLICATE
        if self.finished:
            raise Refused(Reason.FINISHED, f"the fleet has finished after {state.round} updates.")
        if update.round > state.round:
            raise Refused(
                Reason.EARLY, f"the update starts from θ {update.round}; this is {state.round}."
            )
        # A device starts anew from each reply, so its rounds only grow.
        if last is not None and update.round <= last.round:
            raise Refused(Reason.REPLAYED, "the update is not newer than this device's last one.")
        check_newcomer(update.device, state.ledger)
        state.ledger[update.device] = entry_of(update)
        change, _ = clipped(update.tensors, self.settings.merge.clip_norm)
        change = scaled(change, self._weights(update))
        state.shared, state.slots = self.settings.optimizer.step(state.shared, change, state.slots)
        state.round += 1
        return Outcome.ACCEPTED

    def closes_at(self, now: float) -> float:
        return math.inf

    def close(self, now: float) -> Closed:
        raise AssertionError("an asynchronous round closes with its update")

    def _weights(self, update: Update) -> dict[str, float]:
        """w(s) · α of every tensor of the update."""
        fresh = staleness_weight(self.settings.staleness, self.state.round - update.round)
        weights = {}
        for name in update.tensors:
            samples = [e.samples for e in self.state.ledger.values() if name in e.tensors]
            share = {
                "sum": 1.0,
                "mean": 1 / len(samples),
                "samples": update.samples / sum(samples),
            }[self.settings.merge.name]
            weights[name] = fresh * share
        return weights
