"""Where examples come in: each is first predicted, then stored (test-then-train).

A model is tested by examples that it has never seen, and the mean over the last of them says how
good it is on the stream as it is now. Tests take a bounded part of the time, so that a fast stream
is sampled and training does not starve.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from firmware_sim.bundle.target import Target
from firmware_sim.predicting.prediction import error_of
from firmware_sim.predicting.predictor import Predictor
from firmware_sim.store.store import Store
from firmware_sim.tensor_spec import Array

WINDOW = 500  # tests that the mean is taken over
_PART = 0.05  # of the time, for tests
_NAMES = {"numbers": "test_then_train_mae", "input": "test_then_train_error"}


class Intake:
    """Takes examples and labels from any thread."""

    def __init__(
        self,
        store: Store,
        predictor: Predictor,
        target: Target,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._predictor = predictor
        self._target = target
        self._clock = clock
        self._next_test = -math.inf
        self._errors: deque[float] = deque(maxlen=WINDOW)
        self._lock = threading.Lock()

    def observe(self, x: Any, y: Any = None, *, key: str = "") -> str:
        """Stores an example and returns its key, which survives a kill from now on."""
        x = self._store.spec.as_x(x)
        loss = math.inf
        if y is not None or self._store.spec.y is None:
            loss = self._test(x, y)
        return self._store.add(x, y, key, loss=loss)

    def label(self, key: str, y: Any) -> bool:
        """Gives an example its target; returns False if it is not there any more."""
        x = self._store.example(key) if self._is_due() else None
        loss = math.inf if x is None else self._test(x, y)
        return self._store.label(key, y, loss=loss)

    def loss(self, x: Array, y: Array) -> float:
        """Returns the loss of one example now."""
        return error_of(self._target, self._predictor.predict(x), y)[1]

    def scores(self) -> dict[str, float]:
        """Returns the mean over the last tests, if there were any."""
        with self._lock:
            errors = list(self._errors)
        if not errors:
            return {}
        mean = sum(errors) / len(errors)
        if self._target.is_class:
            return {"test_then_train_accuracy": 1 - mean}
        return {_NAMES[self._target.kind]: mean}

    def _is_due(self) -> bool:
        return self._clock() >= self._next_test

    def _test(self, x: Array, y: Any) -> float:
        """Returns the loss, if there is time for a test."""
        if not self._is_due():
            return math.inf
        wanted = x if self._store.spec.y is None else self._store.spec.as_y(y)
        begin = self._clock()
        error, loss = error_of(self._target, self._predictor.predict(x), wanted)
        end = self._clock()
        self._next_test = end + (end - begin) * (1 - _PART) / _PART
        if math.isfinite(error):
            with self._lock:
                self._errors.append(error)
        return loss
