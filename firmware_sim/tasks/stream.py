"""Training on a stream: mini-batches of what the store holds while examples come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from firmware_sim.bundle.target import Target
from firmware_sim.normalisation import LEARNT, Normaliser
from firmware_sim.predicting.intake import Intake
from firmware_sim.store.store import Batch, Store
from firmware_sim.tasks.anomaly import (
    QUANTILE,
    THRESHOLD,
    check_quantile,
    with_threshold,
    without_threshold,
)
from firmware_sim.tasks.measures import Scores
from firmware_sim.tasks.supervised import batch_size, evaluate_batches, take_columns
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model
from firmware_sim.training.task import signature_for
from firmware_sim.training.task_state import pack, unpack

_NO_DATA = b"stream"  # in place of a digest: data may grow between two runs
_SCORED = 64  # examples whose loss is renewed after a round, if the hardest are kept


class StreamTask:
    """Examples of a store that others fill; its held-out part is the test."""

    def __init__(
        self,
        store: Store,
        intake: Intake,
        target: Target,
        normalise: Normaliser,
        *,
        batch: int,
        seed: int,
        quantile: float = QUANTILE,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` raises what went wrong where the examples come from.

        `quantile` is that of the threshold of anomalies (`firmware_sim.tasks.anomaly`).
        """
        self.scores: Scores = {}  # the newest
        self._store = store
        self._intake = intake
        self._normalise = normalise
        self._batch = batch
        self._seed = seed
        self._drawn = 0  # mini-batches, ever
        self._check = check
        self._target = target
        self._quantile = check_quantile(quantile)
        self.threshold: float | None = None  # of anomalies, when it was measured last

    @property
    def samples(self) -> int:
        return self._store.trained

    @property
    def steps_taken(self) -> int:
        """Mini-batches trained so far, those before a restart included."""
        return self._drawn

    def waits_for(self) -> str:
        self._check()
        if self._store.trained < self._batch:
            return f"there are fewer than {self._batch} examples to train on"
        return ""

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        signature = signature_for(exchange)
        for _ in range(steps):
            batch = self._draw(self._batch)
            self._drawn += 1
            yield take_columns(model, signature, self._normalise.apply(batch.x), batch.y)

    def evaluate(self, model: Model) -> Scores:
        """Returns the scores on all examples that are held out now, and of test-then-train."""
        held = (
            (self._normalise.apply(batch.x), batch.y)
            for batch in self._store.held_out(batch_size(model))
        )
        found = evaluate_batches(model, held, self._target, quantile=self._quantile)
        self.threshold = found.get(THRESHOLD, self.threshold)
        if self._store.keep == "hardest" and self._store.trained:
            self._renew_losses()
        self.scores = found | self._intake.scores()
        return self.scores

    def state(self) -> dict[str, Array]:
        own = pack(_NO_DATA, seed=self._seed, drawn=self._drawn)
        return with_threshold(own, self.threshold) | self._normalise.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        learnt = {name: part for name, part in state.items() if name in LEARNT}
        rest = {name: part for name, part in state.items() if name not in LEARNT}
        self._normalise.restore(learnt)
        own, threshold = without_threshold(rest)
        self._seed, self._drawn = unpack(own, _NO_DATA, "seed", "drawn")
        self.threshold = threshold

    def synchronised(self, model: Model) -> None:
        """Nothing to do: there is no target network."""

    def _draw(self, size: int) -> Batch:
        return self._store.sample(np.random.default_rng((self._seed, self._drawn)), size)

    def _renew_losses(self) -> None:
        some = self._draw(min(_SCORED, self._store.trained))
        losses = [self._intake.loss(x, y) for x, y in zip(some.x, some.y, strict=True)]
        self._store.set_losses(some.slots, np.array(losses, np.float32))
