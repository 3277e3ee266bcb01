"""One device learns cats and dogs: python -m … BUNDLE CIFAR10 SEED STEPS; prints JSON.

The seed draws the head, the images that the device holds and their order, so that plans are
compared in pairs.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from firmware_sim.bundle.reader import open_bundle
from firmware_sim.tasks.cifar10 import read_cifar10
from firmware_sim.tensor_spec import Array
from firmware_sim.training.prefixed import open_model
from firmware_sim.training.runtime import Model
from firmware_sim.training.steps import take_batch

PETS = (3, 5)  # cats and dogs
HELD = 4000  # images of a device
BATCH = 32


def main(folder: Path, data: Path, seed: int, steps: int) -> dict[str, float]:
    bundle = open_bundle(folder)
    model = open_model(bundle)
    rng = np.random.default_rng(seed)
    state = model.call("get_state")
    shape = state["head/kernel"].shape
    limit = math.sqrt(6 / sum(shape))
    state["head/kernel"] = rng.uniform(-limit, limit, shape).astype(np.float32)
    model.call("set_state", **state)
    examples = read_cifar10(data)
    x, y = _pets(examples.x_train, examples.y_train)
    held = rng.choice(len(x), HELD, replace=False)
    times = []
    for _ in range(steps):
        rows = rng.choice(held, BATCH, replace=False)
        begun = time.process_time()
        take_batch(model, "train", x=x[rows], y=y[rows])
        times.append(time.process_time() - begun)
    tested = _pets(examples.x_test, examples.y_test)
    return {
        "accuracy": _accuracy(model, *tested),
        "step_ms": 1e3 * statistics.median(times),
    }


def _pets(images: Array, labels: Array) -> tuple[Array, Array]:
    """Cats are class 0, dogs class 1."""
    kept = np.isin(labels, PETS)
    return images[kept], (labels[kept] == PETS[1]).astype(np.int32)


def _accuracy(model: Model, x: Array, y: Array) -> float:
    """Of as many whole batches as there are, whatever the micro-batch."""
    size = model.inputs("evaluate")["x"].shape[0]
    count = len(x) // BATCH * BATCH
    right = sum(
        float(model.call("evaluate", x=x[i : i + size], y=y[i : i + size])["correct"])
        for i in range(0, count, size)
    )
    return right / count


if __name__ == "__main__":
    where, source, number, count = sys.argv[1:]
    print(json.dumps(main(Path(where), Path(source), int(number), int(count))))
