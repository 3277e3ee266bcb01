"""Algorithm 3: every update is applied at once, and its device alone gets the new θ_shared."""

from __future__ import annotations

import math
from collections import Counter

from broker.merging.coordinator import Closed, Coordinator, Entry, Settings, State, entry_of
from broker.merging.merge import clipped, scaled
from broker.merging.staleness import staleness_weight
from broker.protocol.messages import Reason, Refused, Update


class Asynchronous(Coordinator):
    """Every accepted update is a round of its own: θ ← θ + w(s) · α · Δ.

    s = merges since the device received its θ; w is the staleness rule.
    α by merge rule, for each tensor, over the devices that have sent it so far, this one included:
      sum      1, as algorithm 3 is printed
      mean     1 / K
      samples  n_k / Σ_j n_j
    Once every device has sent, one update of each moves θ as far as a synchronous round would.
    Before that θ moves further, because the first updates are divided by fewer devices: the first
    K of "mean" have the weight 1 + 1/2 + … + 1/K together. Gradients are weighted in the same way
    before the optimiser's step; that has little effect on Adam, which divides by their size.
    """

    replies_individually = True

    def __init__(self, settings: Settings, state: State, now: float) -> None:
        super().__init__(settings, state, now)
        # For each tensor: numbers of devices in the ledger that hold it, and of their samples.
        self._devices: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()
        for entry in state.ledger.values():
            self._count(entry, 1)

    @classmethod
    def replay_identity(cls, settings: Settings) -> str:
        """All rules of merging: a replay merges every update of the journal again."""
        merge = settings.merge
        rules = f"{merge.name}, clip norm {merge.clip_norm}, {settings.staleness}"
        return f"{rules}, {settings.optimizer}"

    @property
    def state_is_complete(self) -> bool:
        return True

    def accept(self, update: Update) -> None:
        state = self.state
        last = state.ledger.get(update.device)
        if update.round > state.round:
            raise Refused(
                Reason.EARLY, f"the update starts from θ {update.round}; this is {state.round}."
            )
        # A device trains from each reply once, so its rounds only grow.
        if last is not None and update.round <= last.round:
            raise Refused(Reason.REPLAYED, "the update is not newer than this device's last one.")
        self._check_newcomer(update.device)
        change, _ = clipped(update.tensors, self.settings.merge.clip_norm)
        change = scaled(change, self._weights(update, last))
        # Nothing has changed before this line, because the step may raise an error.
        state.shared, state.slots = self.settings.optimizer.step(state.shared, change, state.slots)
        state.round += 1
        state.ledger[update.device] = entry = entry_of(update)
        if last is not None:
            self._count(last, -1)
        self._count(entry, 1)

    def closes_at(self, now: float) -> float:
        return math.inf

    def close(self, now: float) -> Closed:
        raise AssertionError("an asynchronous round closes with its update")

    def _weights(self, update: Update, last: Entry | None) -> dict[str, float]:
        """Returns w(s) · α of every tensor of the update, which replaces this device's last one."""
        fresh = staleness_weight(self.settings.staleness, self.state.round - update.round)
        weights = {}
        for name in update.tensors:
            counted = last is not None and name in last.tensors
            before = last.samples if last is not None and counted else 0
            devices = self._devices[name] + (not counted)
            samples = self._samples[name] - before + update.samples
            share = {
                "sum": 1.0,
                "mean": 1 / devices,
                "samples": update.samples / samples,
            }[self.settings.merge.name]
            weights[name] = fresh * share
        return weights

    def _count(self, entry: Entry, times: int) -> None:
        for name in entry.tensors:
            self._devices[name] += times
            self._samples[name] += times * entry.samples
