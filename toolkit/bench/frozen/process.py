"""One contestant of `toolkit bench frozen`, in a process of its own; prints its report as JSON.

    python -m toolkit.bench.frozen.process KIND RUNTIME STEPS THREADS FILE [PREFIX]

KIND is inference (of FILE, the backbone alone), step, or cached (steps on features that are kept).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from firmware_sim.probe import peak_memory_bytes, random_input
from firmware_sim.tensor_spec import Array, TensorSpec
from firmware_sim.training.features import FeatureCache
from firmware_sim.training.prefixed import PREFIX, PrefixedModel
from firmware_sim.training.runtime import Model
from firmware_sim.training.steps import take_batch
from toolkit.bench.contest import BATCH

EXAMPLES = 4 * BATCH


def contestant(
    kind: str, runtime: str, threads: int, file: Path, prefix: Path | None
) -> Callable[[], object]:
    """Returns what is timed: 32 examples, of which the batch is another one each time."""
    if prefix is None:
        plain = Model(file, runtime=runtime, threads=threads)
        x, _ = _examples(plain.inputs(PREFIX)["x"])
        return lambda: plain.call(PREFIX, x=x[:BATCH])
    model = PrefixedModel(file, prefix, runtime=runtime, threads=threads)
    x, y = _examples(model.inputs("train")["x"])
    folder = Path(tempfile.gettempdir())
    cache = (
        FeatureCache(folder, model.features(x[:1]).shape[1:], len(x)) if kind == "cached" else None
    )
    batches = iter(np.arange(10**6) * BATCH % len(x))

    def step() -> float:
        numbers = next(batches) + np.arange(BATCH)
        if cache is None:
            return take_batch(model, "train", x=x[numbers], y=y[numbers])
        features = cache.take(numbers, lambda missing: model.features(x[missing]))
        return take_batch(model, "train", x_features=features, y=y[numbers])

    for _ in range(0, len(x), BATCH):  # fills the cache
        step()
    return step


def _examples(spec: TensorSpec) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    x = random_input(rng, TensorSpec((EXAMPLES, *spec.shape[1:]), spec.dtype))
    return x, rng.integers(0, 2, EXAMPLES, dtype=np.int32)


def main(kind: str, runtime: str, steps: int, threads: int, *files: Path) -> dict[str, object]:
    start = peak_memory_bytes()
    run = contestant(kind, runtime, threads, files[0], files[1] if len(files) > 1 else None)
    for _ in range(2):
        run()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return {"step_seconds": times, "peak_bytes": peak_memory_bytes(), "start_bytes": start}


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    print(json.dumps(main(what, where, int(rest[0]), int(rest[1]), *map(Path, rest[2:]))))
