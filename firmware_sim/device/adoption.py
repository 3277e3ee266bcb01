"""Adopts θ_shared: judged before it is believed, and measured after it is set.

The score has collapsed if, with quality a on the held-out data now and g with the last good one,

    a < g / 2   and   g - a > 0.15

The quality is the accuracy of classes, and of numbers R², the part of their variance that is
explained (`firmware_sim.tasks.measures`). Honest rounds of unequal devices cost far less; a forged
or spoilt θ_shared leaves chance. The points of a few games differ as much by luck, and are not
compared. A device says that its
score has collapsed, and keeps the last good θ_shared in its checkpoints. With `guard` it returns
to that one at once, trains from it, and sends nothing in this round: Δ from another θ than the one
that the aggregator has would be no update of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from broker.log import Log
from broker.protocol.messages import AggregatorState, Shared
from broker.protocol.quantisation import widened
from firmware_sim.device.plausibility import Plausibility, Scale
from firmware_sim.errors import Implausible
from firmware_sim.tasks.measures import quality
from firmware_sim.training.rounds import Rounds

KEPT_PART = 0.5
LEAST_LOSS = 0.15


class Adoption:
    """The only place where θ_shared of the fleet reaches the model."""

    def __init__(self, rounds: Rounds, log: Log, *, guard: bool) -> None:
        self.collapses = 0
        self._rounds = rounds
        self._learner = rounds.learner
        self._log = log
        self._guard = guard

    @cached_property
    def _plausibility(self) -> Plausibility:
        """The first θ_shared is measured by what the model has then, of bundle or checkpoint."""
        return Plausibility(Scale.of(self._learner.shared()), self._rounds.trusted)

    def judge(self, shared: Shared, state: AggregatorState) -> None:
        """Raises `Implausible` if this θ_shared should not be adopted."""
        tensors = widened(shared.tensors)
        if not self._learner.fits(tensors):
            raise Implausible("the fleet's θ_shared does not fit this bundle, or is not finite.")
        self._plausibility.check(shared, tensors, state)

    def asked(self) -> None:
        """The device has asked for a θ_shared that it lacks."""
        self._plausibility.asked()

    def adopt(self, shared: Shared, state: AggregatorState) -> tuple[dict[str, float], bool]:
        """Sets θ_shared; returns the scores with what is in use, and whether that is `shared`."""
        scores, adopted = self._adopt(shared, state)
        self._rounds.renewed()  # not before: what has collapsed answers nobody
        return scores, adopted

    def _adopt(self, shared: Shared, state: AggregatorState) -> tuple[dict[str, float], bool]:
        trusted = self._rounds.trusted
        self._learner.adopt(shared.tensors)
        scores = self._rounds.evaluate(shared.round, last=shared.last)
        if not has_collapsed(scores, trusted.quality if trusted.run == shared.run else None):
            own = self._learner.shared()
            self._plausibility.adopted(shared, own, state, quality(scores))
            return scores, True
        self.collapses += 1
        self._log.event(
            "score_collapsed",
            round=shared.round,
            quality=quality(scores),
            good_round=trusted.round,
            good_quality=trusted.quality,
            guard=self._guard,
        )
        if self._guard:
            self._learner.adopt(trusted.tensors)
            scores = self._rounds.evaluate(shared.round, last=shared.last)
        return scores, not self._guard


def has_collapsed(scores: Mapping[str, float], good: float | None) -> bool:
    """Returns whether these scores have collapsed, `good` being the quality before."""
    now = quality(scores)
    if now is None or good is None:
        return False
    return now < KEPT_PART * good and good - now > LEAST_LOSS
