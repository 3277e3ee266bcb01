"""Trains a bundle on examples of its own, without any broker.

    python -m firmware_sim.local --bundle DIR --data FILE.npz [--steps N]

FILE.npz holds x_train, y_train, x_test and y_test. The answer is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from firmware_sim.bundle import BundleError, open_bundle
from firmware_sim.measure import peak_memory_bytes
from firmware_sim.runtime import RUNTIMES, Model, RuntimeUnavailable, WrongInput
from firmware_sim.supervised import Batches, evaluate, train
from firmware_sim.tasks import TaskError
from firmware_sim.tasks.arrays import read_examples


def learn(bundle_folder: Path, data: Path, *, steps: int, runtime: str | None) -> dict[str, object]:
    bundle = open_bundle(bundle_folder)
    examples = read_examples(data)
    model = Model(bundle.model, runtime=runtime, threads=bundle.manifest["profile"]["threads"])
    before = evaluate(model, examples.x_test, examples.y_test)
    batches = Batches(len(examples.x_train), model.inputs("train")["x"].shape[0], seed=0)
    taken = list(train(model, examples.x_train, examples.y_train, batches, steps=steps))
    return {
        "runtime": model.runtime,
        "steps": steps,
        "step_seconds": statistics.median(step.seconds for step in taken),
        "before": asdict(before),
        "after": asdict(evaluate(model, examples.x_test, examples.y_test)),
        "peak_bytes": peak_memory_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, required=True, help="folder from `toolkit export`")
    parser.add_argument("--data", type=Path, required=True, help="examples, a .npz file")
    parser.add_argument("--steps", type=int, default=200, help="mini-batches to train on")
    parser.add_argument("--runtime", choices=tuple(RUNTIMES), help="default: the first installed")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps must be at least 1")
    try:
        report = learn(args.bundle, args.data, steps=args.steps, runtime=args.runtime)
    except (BundleError, RuntimeUnavailable, TaskError, WrongInput) as error:
        sys.exit(f"error: {error}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
