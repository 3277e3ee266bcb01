"""Compares a quantised model with float32 `infer` of the same weights, in the device's runtime.

As a program it runs in a fresh process, since tflite-runtime cannot be loaded beside TensorFlow:

    python -m toolkit.trained.comparison MODEL INFER STATE EXAMPLES --runtime NAME
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model

PARITY_EXAMPLES = 4  # of which Keras computes the output as well


@dataclass(frozen=True)
class Comparison:
    """The quantised model beside float32 `infer` of the same weights, in one runtime.

    Shares are of the examples; there are accuracies where the examples have labels.
    """

    runtime: str
    examples: int
    same_answer: float  # share with the same largest output
    mean_difference: float  # of one output, absolute
    accuracy: float | None
    float32_accuracy: float | None


def compare(model: Path, infer: Path, state: Path, examples: Path, runtime: str) -> dict[str, Any]:
    """Runs both models on each example; `answers` are the first outputs of float32."""
    float32, quantised = Model(model, runtime=runtime), Model(infer, runtime=runtime)
    float32.call("set_state", **load_file(state))
    found = load_file(examples)
    wanted, got = (
        np.stack([m.call("infer", x=x[None])["output"].ravel() for x in found["x"]])
        for m in (float32, quantised)
    )
    labels = found.get("y")
    return {
        "answers": wanted[:PARITY_EXAMPLES].tolist(),
        "same_answer": float(np.mean(wanted.argmax(1) == got.argmax(1))),
        "mean_difference": float(np.mean(np.abs(wanted - got))),
        "accuracy": _accuracy(got, labels),
        "float32_accuracy": _accuracy(wanted, labels),
    }


def _accuracy(answers: Array, labels: Array | None) -> float | None:
    return None if labels is None else float(np.mean(answers.argmax(1) == labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "infer", "state", "examples"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--runtime", required=True)
    args = parser.parse_args()
    print(json.dumps(compare(args.model, args.infer, args.state, args.examples, args.runtime)))


if __name__ == "__main__":
    main()
