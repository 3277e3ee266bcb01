"""Algorithm 3: every update is applied at once, and its device alone gets the new θ_shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from broker.errors import StepRefused
from broker.merging.bounds import size_of
from broker.merging.coordinator import Closed, Coordinator, Settings, State, entry_of
from broker.merging.last_updates import Counted, LastUpdates
from broker.merging.staleness import staleness_weight
from broker.merging.vectors import scaled
from broker.protocol.messages import Reason, Refused, Update


class Asynchronous(Coordinator):
    """Every accepted update is a round of its own: θ ← θ + w(s) · α · Δ.

    s = merges since the device received its θ; w is the staleness rule.
    α by merge rule, for each tensor, over the devices that have sent it so far, this one included:
      sum      1, as algorithm 3 is printed
      mean     1 / K
      samples  n_k / Σ_j n_j
    Updates are bounded as in a round (`bounds.py`); the round is the last update of each device.
    Once every device has sent, one update of each moves θ as far as a synchronous round would.
    Before that θ moves further, because the first updates are divided by fewer devices: the first
    K of "mean" have the weight 1 + 1/2 + … + 1/K together. Gradients are weighted in the same way
    before the optimiser's step; that has little effect on Adam, which divides by their size.
    """

    replies_individually = True

    def __init__(self, settings: Settings, state: State, now: float) -> None:
        super().__init__(settings, state, now)
        self._last = LastUpdates(state.ledger)

    @classmethod
    def replay_identity(cls, settings: Settings) -> str:
        """All rules of merging: a replay merges every update of the journal again."""
        merge = settings.merge
        rules = f"{merge.name}, clip norm {merge.bounds.clip_norm}, {settings.staleness}"
        return f"{rules}, {settings.optimizer}{merge.bounds.described}"

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
        size = size_of(update.squares, update.samples, self.settings.merge.bounds)
        entry = entry_of(update)
        if size.squares:
            entry = replace(entry, squares=tuple(size.squares[name] for name in entry.tensors))
        self._last.put(update.device, entry)
        weighted = self.settings.merge.name == "samples"
        counted = self._last.counted(update.device, self.settings.merge.bounds, weighted=weighted)
        try:
            change = scaled(update.tensors, self._weights(update, counted, size.factor))
            shared, slots = self.settings.optimizer.step(state.shared, change, state.slots)
        except StepRefused:  # nothing changes
            self._last.put(update.device, last)
            raise
        state.shared, state.slots = shared, slots
        state.round += 1
        state.ledger[update.device] = entry
        clipped = size.factor < 1 or any(group.share.factor < 1 for group in counted)
        bounded = weighted and any(group.share.weight < update.samples for group in counted)
        self._note_limited([update.device] * clipped, [update.device] * bounded)

    def closes_at(self, now: float) -> float:
        return math.inf

    def close(self, now: float) -> Closed:
        raise AssertionError("an asynchronous round closes with its update")

    def _weights(self, update: Update, counted: Sequence[Counted], clip: float) -> dict[str, float]:
        """Returns w(s) · α · f of every tensor; `clip` is the factor of `clip_norm`."""
        fresh = staleness_weight(self.settings.staleness, self.state.round - update.round)
        weights: dict[str, float] = {}
        for group in counted:
            total = 1.0 if self.settings.merge.name == "sum" else group.total
            alpha = group.share.counts / total
            weights |= dict.fromkeys(group.names, fresh * alpha * clip)
        return weights
