"""The applications that `toolkit bench stream` runs in processes of their own; no TensorFlow.

python -m toolkit.bench.stream.application kills BUNDLE STATE
python -m toolkit.bench.stream.application many BUNDLE STATE COUNT
python -m toolkit.bench.stream.application answers BUNDLE STATE COUNT
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from broker.log import Log
from firmware_sim.application.device import Device
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.tensor_spec import Array

SHAPE, CLASSES = (128, 6), 4
_LOOK = 1000  # observations between two looks at the disk


def window(number: int) -> tuple[Array, int]:
    """Returns a window that differs from all others, and its class."""
    label = number % CLASSES
    rng = np.random.default_rng(number)
    x = rng.standard_normal(SHAPE, dtype=np.float32) + np.float32(label)
    x[0, 0] = number
    return x, label


def start(bundle: str, state: str, **options: Any) -> Device:
    return Device(bundle, state=state, log=Log(io.StringIO()), seed=0, **options)


def kills(bundle: str, state: str) -> None:
    """Observes until it is killed; says which window is safe, and how far training is."""
    with start(bundle, state, steps=20, checkpoint_seconds=0.2) as device:
        store = device._stream.store
        for number in range(store.counts().arrivals, sys.maxsize):
            device.observe(*window(number), key=f"window {number}")
            print(json.dumps([number, device._stream.task.steps_taken]), flush=True)
            time.sleep(0.004)  # so that none is replaced by a newer one before the last kill


def many(bundle: str, state: str, count: str) -> None:
    """Observes `count` windows as fast as it can, beside training."""
    made = [window(number) for number in range(64)]
    with start(bundle, state, steps=20) as device:
        stored = 0
        begin = time.perf_counter()
        for number in range(int(count)):
            x, label = made[number % len(made)]
            device.observe(x, label)
            if number % _LOOK == 0:
                stored = max(stored, _bytes_in(Path(state)))
        seconds = time.perf_counter() - begin
        taken = device._stream.task.steps_taken
    report = {"per_second": int(count) / seconds, "stored_bytes": stored, "steps": taken}
    print(json.dumps({**report, "peak_bytes": peak_memory_bytes()}))


def answers(bundle: str, state: str, count: str) -> None:
    """Times predictions before there is anything to train on, and while it trains."""
    x, _ = window(0)
    with start(bundle, state, steps=50) as device:
        for _ in range(200):
            device.predict(x)
        alone = _timed(device, x, int(count))
        for number in range(256):
            device.observe(*window(number))
        while not device._stream.task.steps_taken:
            time.sleep(0.01)
        before = device._stream.task.steps_taken
        training = _timed(device, x, int(count))
        taken = device._stream.task.steps_taken - before
    print(json.dumps({"alone_seconds": alone, "training_seconds": training, "steps": taken}))


def _bytes_in(folder: Path) -> int:
    """Returns the size of all files; one may be renamed or removed meanwhile."""
    sizes = []
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return sum(sizes)


def _timed(device: Device, x: Array, count: int) -> list[float]:
    """Returns the time of each prediction; between two there is a pause, as of a sensor."""
    times = []
    for _ in range(count):
        time.sleep(0.001)
        begin = time.perf_counter()
        device.predict(x)
        times.append(time.perf_counter() - begin)
    return times


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"kills": kills, "many": many, "answers": answers}
    programs[sys.argv[1]](*sys.argv[2:])
