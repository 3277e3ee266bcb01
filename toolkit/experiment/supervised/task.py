"""The task of a device in the supervised study: train, validate, keep the best version.

After every round the device validates on its own 20 % of the examples. The test set measures
versions; nothing is chosen by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from broker.protocol.wire import below
from firmware_sim.bundle.target import A_CLASS, Target
from firmware_sim.tasks.labelled import Examples, LabelledTask
from firmware_sim.tasks.measures import MEASURES, Scores
from firmware_sim.tasks.supervised import evaluate
from firmware_sim.tensor_spec import Array
from firmware_sim.training.random_streams import stream_number
from firmware_sim.training.runtime import Model
from toolkit.experiment.cell import BATCH
from toolkit.experiment.supervised.splits import Part

OnScores = Callable[[int, dict[str, float]], None]  # a round, and the scores after it
_BEST = "best/"
_OPTIMIZER = "optimizer/"  # tensors that are not part of a version


class StudyTask(LabelledTask):
    """Trains on one part of a device's examples and validates on the other."""

    def __init__(
        self,
        examples: Examples,
        part: Part,
        *,
        target: Target = A_CLASS,
        steps: int,
        seed: int,
        test_rounds: Collection[int],
        validate_on: int | None,
        on_scores: OnScores,
        stream: str = "",
    ) -> None:
        """`stream` distinguishes the random numbers of dropout from those of other devices."""
        x, y = examples.x_train, examples.y_train
        own = Examples(x[part.training], y[part.training], examples.x_test, examples.y_test)
        super().__init__(own, batch=BATCH, seed=seed, target=target)
        self.measure = MEASURES[target.kind]
        validation = part.validation[:validate_on]
        self._x, self._y = x[validation], y[validation]
        self._steps = steps  # in a round
        self._stream = stream
        self._test_rounds = test_rounds
        self._on_scores = on_scores
        self._validated = -1  # the last round that this process has validated
        self.best_round = -1
        self.best_scores: Scores = {}  # the measure and the loss
        self._best: dict[str, Array] = {}

    @property
    def round(self) -> int:
        """The number of trained rounds."""
        return self.steps_taken // self._steps

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        """Trains a round.

        Every round uses its own stream of random numbers, so that a round that is trained again
        after a kill draws the same numbers. A version that was saved but not yet validated before
        a kill is validated first.
        """
        if self._validated < self.round:
            self.evaluate(model)
        model.use_random_stream(stream_number(self._stream, self.round))
        return super().train(model, steps, exchange)

    def evaluate(self, model: Model) -> dict[str, float]:
        """Validates the current version and keeps it if it is the best; tests it in some rounds.

        With few validation examples equal accuracies are frequent; then the lower loss is better.
        """
        found = evaluate(model, self._x, self._y, self._target)
        if not self.best_scores or self._gain(found) > self._gain(self.best_scores):
            self.best_round = self.round
            self.best_scores = {name: found[name] for name in (self.measure.name, "loss")}
            self._best = {
                name: value
                for name, value in model.call("get_state").items()
                if not name.startswith(_OPTIMIZER)
            }
        measure = self.measure.name
        scores = {f"validation_{name}": found[name] for name in (measure, "loss")}
        if self.round in self._test_rounds:
            scores[f"test_{measure}"] = self.test(model)
        self._validated = self.round
        self._on_scores(self.round, scores)
        return scores

    def test(self, model: Model) -> float:
        """Returns the measure on the test set."""
        return super().evaluate(model)[self.measure.name]

    def _gain(self, scores: Scores) -> tuple[float, float]:
        return self.measure.gain(scores), -scores["loss"]

    def restore_best(self, model: Model) -> None:
        """Sets the model to the best version."""
        model.call("set_state", **model.call("get_state") | self._best)

    def state(self) -> dict[str, Array]:
        best = {
            **{name: np.array(value, np.float64) for name, value in self.best_scores.items()},
            "round": np.array(self.best_round, np.int64),
            **{f"tensor/{name}": value for name, value in self._best.items()},
        }
        return super().state() | {_BEST + name: value for name, value in best.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        best = below(_BEST, state)
        super().restore({name: v for name, v in state.items() if not name.startswith(_BEST)})
        names = [name for name in (self.measure.name, "loss") if name in best]
        self.best_scores = {name: float(best[name]) for name in names}
        self.best_round = int(best["round"])
        self._best = below("tensor/", best)
