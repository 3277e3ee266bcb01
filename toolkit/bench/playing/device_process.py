"""A device that plays and trains, timed; for `toolkit bench rl`.

    python -m toolkit.bench.playing.device_process BUNDLE TASK GAME WARM_UP STEPS THREADS

It loads only what a device loads, so that its peak memory is that of a device. After the timed
steps the same number of steps is taken with a profiler. The output is one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import firmware_sim.device.build  # noqa: F401  what a device loads counts too
from firmware_sim.bundle.reader import open_bundle
from firmware_sim.playing.budget import make_replay
from firmware_sim.playing.dqn import DqnTask
from firmware_sim.playing.environments import make_environment
from firmware_sim.playing.options import PlayerOptions
from firmware_sim.playing.player import game_of
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model, runtime_for
from toolkit.bench.playing.timing import bench_options, timed

MEASURED = ("environment", "act", "replay", "train")
PARTS = {"infer": "act", "train": "train", "accumulate": "train", "step": "train"}


class Profiler:
    """Adds up the CPU time of chosen methods while it is `active`."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.active = False

    def on(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **named: Any) -> Any:
            if not self.active:
                return function(*arguments, **named)
            begin = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[part] += time.process_time() - begin

        return measured

    def over(self, thing: Any, part: str, *methods: str) -> Any:
        """Returns the same object, with some of its methods measured."""
        for method in methods:
            setattr(thing, method, self.on(part, getattr(thing, method)))
        return thing


class ProfiledModel(Model):
    """A model whose signatures are measured."""

    profiler: Profiler

    def call(self, signature: str, /, **inputs: Array) -> dict[str, Array]:
        part = PARTS.get(signature, "rest")
        found: dict[str, Array] = self.profiler.on(part, super().call)(signature, **inputs)
        return found


def main(
    folder: Path, task: str, game: str, warm_up: int, steps: int, threads: int
) -> dict[str, Any]:
    bundle = open_bundle(folder)
    profiler = Profiler()
    model = ProfiledModel(bundle.model, runtime=runtime_for(bundle), threads=threads)
    model.profiler = profiler
    name = game_of(task, game)
    example = make_environment(name, 1)
    options = PlayerOptions(game=game, replay_frames=2 * (warm_up + 3 * steps))
    player = DqnTask(
        name=name,
        environment=lambda most: profiler.over(
            make_environment(name, most), "environment", "step", "reset"
        ),
        replay=lambda: profiler.over(
            make_replay(bundle, options, example), "replay", "begin", "add", "sample"
        ),
        batch=bundle.manifest.batch_size,
        options=bench_options(name, warm_up),
        seed=0,
    )
    play = partial(player.train, model, exchange="delta")
    list(play(steps=2))  # the warm-up, and what is prepared in the first steps
    found = timed(lambda: list(play(steps=steps)), steps)
    profiler.active = True
    begin = time.process_time()
    list(play(steps=steps))
    total = time.process_time() - begin
    parts = {part: profiler.seconds[part] / total for part in MEASURED}
    return found | {
        "runtime": model.runtime,
        "parts": parts | {"rest": 1 - sum(parts.values())},
        "peak_bytes": peak_memory_bytes(),
    }


if __name__ == "__main__":
    path, task_name, game_name, *numbers = sys.argv[1:]
    print(json.dumps(main(Path(path), task_name, game_name, *map(int, numbers))))
