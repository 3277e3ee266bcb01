"""Inference beside training, in interpreters of its own.

`predict.tflite` takes the weights as inputs of its only graph. A runtime never writes over the
inputs of a graph, so they are set once, and every inference sets `x` alone. There are two
interpreters: new weights go into the one that is not in use, and then the two change places, so
that a prediction waits for neither a training step nor for new weights.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from firmware_sim.bundle.target import Target
from firmware_sim.predicting.prediction import Prediction, prediction_of
from firmware_sim.tensor_spec import Array
from firmware_sim.training.prefixed import features_of
from firmware_sim.training.runtime import RUNTIMES, Model, choose_runtime

_X, _OUTPUT, _PROBABILITIES = "x", "output", "probabilities"


class Predictor:
    """Answers from any thread, with the newest weights that it was given."""

    def __init__(
        self,
        file: Path,
        target: Target,
        normalise: Callable[[Array], Array] = lambda x: x,
        *,
        prefix: Path | None = None,
        runtime: str | None = None,
    ) -> None:
        self._threshold: float | None = None  # of anomalies
        self._target = target
        self._normalise = normalise
        name = choose_runtime(runtime)
        self._prefix = Model(prefix, runtime=name) if prefix else None
        self._in_use, self._spare = (_Loaded(file, name) for _ in range(2))
        self._using, self._renewing = threading.Lock(), threading.Lock()

    def renew(self, weights: Mapping[str, Array], threshold: float | None = None) -> None:
        """Answers with these weights from now on, others among them are ignored.

        `threshold` is that of anomalies, measured with these weights.
        """
        with self._renewing:
            self._spare.set(weights)
            with self._using:
                self._in_use, self._spare = self._spare, self._in_use
                self._threshold = threshold

    def predict(self, x: Array) -> Prediction:
        """Returns the answer to one example, which has the branch's shape and type."""
        x = self._normalise(x)
        with self._using:
            row = x[None] if self._prefix is None else features_of(self._prefix, x[None])
            output, probabilities = self._in_use.run(row)
            threshold = self._threshold
        return prediction_of(self._target, x, output, probabilities, threshold)


class _Loaded:
    """One interpreter of the file, by the numbers of its tensors."""

    def __init__(self, file: Path, runtime: str) -> None:
        module = importlib.import_module(RUNTIMES[runtime])
        self._interpreter: Any = module.Interpreter(model_path=str(file), num_threads=1)
        runner = self._interpreter.get_signature_runner("infer")
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        self._weights = {name: d["index"] for name, d in inputs.items() if name != _X}
        self._x = inputs[_X]["index"]
        self._output = outputs[_OUTPUT]["index"]
        self._probabilities = outputs.get(_PROBABILITIES, outputs[_OUTPUT])["index"]
        del runner  # it refers to the interpreter, which refuses to allocate tensors then
        self._interpreter.allocate_tensors()

    def set(self, weights: Mapping[str, Array]) -> None:
        for name, index in self._weights.items():
            self._interpreter.set_tensor(index, weights[name])

    def run(self, row: Array) -> tuple[Array, Array]:
        interpreter = self._interpreter
        interpreter.set_tensor(self._x, row)
        interpreter.invoke()
        output = interpreter.get_tensor(self._output)[0]
        if self._probabilities == self._output:
            return output, output
        return output, interpreter.get_tensor(self._probabilities)[0]
