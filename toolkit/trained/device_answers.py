"""What a device answers with trained weights: its model in its runtime, example by example.

As a program it runs in a fresh process, since tflite-runtime cannot be loaded beside TensorFlow:

    python -m toolkit.trained.device_answers --runtime NAME OUT EXAMPLES STATE MODEL [INFER …]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from firmware_sim.bundle.reader import PREFIX
from firmware_sim.tensor_spec import Array
from firmware_sim.training.prefixed import load_model as with_prefix
from firmware_sim.training.runtime import Model


def load_model(path: Path, state: Mapping[str, Array], *, runtime: str) -> Model:
    """Returns the training model with these tensors; others are as they were exported.

    A prefix stands beside it.
    """
    prefix = path.with_name(PREFIX)
    model = with_prefix(path, prefix if prefix.exists() else None, runtime=runtime)
    if state:
        model.call("set_state", **{**model.call("get_state"), **state})
    return model


def answers(model: Model, examples: Array) -> Array:
    """Returns the output of `infer` for each example."""
    return np.concatenate([model.call("infer", x=x[None])["output"] for x in examples])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("out", "examples", "state", "model"):
        parser.add_argument(name, type=Path)
    parser.add_argument("others", type=Path, nargs="*")
    parser.add_argument("--runtime", required=True)
    args = parser.parse_args()
    x = load_file(args.examples)["x"]
    device = load_model(args.model, load_file(args.state), runtime=args.runtime)
    found = {"device": answers(device, x)}
    for path in args.others:
        found[path.name] = answers(Model(path, runtime=args.runtime), x)
    save_file(found, args.out)


if __name__ == "__main__":
    main()
