"""Times models of one operation each, in either runtime, without TensorFlow.

python -m toolkit.bench.step.operation_process FOLDER COUNT RUNTIME THREADS
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.probe import random_input
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.runtime import RUNTIMES

ENOUGH_SECONDS = 0.02  # of measurement for each
LEAST_RUNS, MOST_RUNS = 5, 200


def run(folder: Path, count: int, runtime: str, threads: int) -> list[float]:
    return [_seconds(folder / f"{number}.tflite", runtime, threads) for number in range(count)]


def _seconds(model: Path, runtime: str, threads: int) -> float:
    interpreter = _interpreter(model, runtime, threads)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    for detail in interpreter.get_input_details():
        spec = TensorSpec(tuple(int(n) for n in detail["shape"]), np.dtype(detail["dtype"]))
        interpreter.set_tensor(detail["index"], np.asarray(random_input(rng, spec), spec.dtype))
    interpreter.invoke()
    times: list[float] = []
    end = time.perf_counter() + ENOUGH_SECONDS
    while len(times) < LEAST_RUNS or (time.perf_counter() < end and len(times) < MOST_RUNS):
        begin = time.perf_counter()
        interpreter.invoke()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _interpreter(model: Path, runtime: str, threads: int) -> Any:
    """Returns an interpreter as in training, where tflite-runtime does not use XNNPACK."""
    module = importlib.import_module(RUNTIMES[runtime])
    resolver = module.OpResolverType.AUTO
    if runtime == "tflite-runtime":
        resolver = module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return module.Interpreter(
        model_path=str(model), num_threads=threads, experimental_op_resolver_type=resolver
    )


if __name__ == "__main__":
    folder_name, how_many, runtime_name, thread_count = sys.argv[1:]
    seconds = run(Path(folder_name), int(how_many), runtime_name, int(thread_count))
    print(json.dumps({"seconds": seconds}))
