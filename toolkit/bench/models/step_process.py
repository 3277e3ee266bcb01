"""Steps of a converted model in a device's runtime: python -m … RUNTIME FILE STEPS.

Prints JSON: the median time of a step, and the peak of memory.
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import sys
import time

import numpy as np


def main(runtime: str, file: str, steps: int) -> dict[str, float]:
    module = importlib.import_module(f"{runtime.replace('-', '_')}.interpreter")
    train = module.Interpreter(model_path=file, num_threads=1).get_signature_runner("train")
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.integers(0, 10, details["shape"]).astype(details["dtype"])
        for name, details in train.get_input_details().items()
    }
    times = []
    for _ in range(steps + 1):
        begun = time.perf_counter()
        loss = float(train(**inputs)["loss"])
        times.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"step_ms": 1000 * statistics.median(times[1:]), "peak_mib": peak, "loss": loss}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
