"""Trains a model on random numbers and reports its speed and the memory that it took.

    python -m firmware_sim.measure MODEL.tflite [--runtime NAME] [--threads N] [--steps N]

Run it in a process of its own: the peak is that of the whole process, as the kernel counts it.
The answer is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from firmware_sim.runtime import Array, Model, TensorSpec, runtime_version


def peak_memory_bytes() -> int:
    """The high-water mark of this process (VmHWM); unlike ru_maxrss it starts anew with exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel does not tell VmHWM")


def random_input(rng: np.random.Generator, spec: TensorSpec) -> Array:
    """Something of the right type: labels and actions are 0 or 1, which any model has."""
    if spec.dtype == np.uint8:
        return rng.integers(0, 256, spec.shape, dtype=np.uint8)
    if spec.dtype == np.int32:
        return rng.integers(0, 2, spec.shape, dtype=np.int32)
    return rng.random(spec.shape, dtype=np.float32)


def measure(model: Path, *, runtime: str | None, threads: int, steps: int) -> dict[str, object]:
    """One inference, a warm-up step, then `steps` timed ones on the same batch."""
    imported = peak_memory_bytes()
    loaded = Model(model, runtime=runtime, threads=threads)
    x = random_input(np.random.default_rng(0), loaded.inputs("infer")["x"])
    answer = loaded.call("infer", x=x)["output"]
    rng = np.random.default_rng(0)
    batch = {name: random_input(rng, spec) for name, spec in loaded.inputs("train").items()}
    losses = [float(loaded.call("train", **batch)["loss"])]
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = loaded.call("train", **batch)["loss"]
        times.append(time.perf_counter() - begin)
        losses.append(float(loss))
    return {
        "runtime": loaded.runtime,
        "runtime_version": runtime_version(loaded.runtime),
        "threads": threads,
        "answer": answer.ravel().tolist(),
        "step_seconds": times,
        "losses": losses,
        "start_bytes": imported,
        "peak_bytes": peak_memory_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runtime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    report = measure(args.model, runtime=args.runtime, threads=args.threads, steps=args.steps)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
