"""A device that fills its replay by playing, then trains; for `toolkit bench replay`.

    python -m toolkit.bench.playing.replay_process BUNDLE GAME STEPS BATCHES [FOLDER]

It loads only what a device loads, so that its peak memory is that of a device. With FOLDER the
replay is on disk. The output is one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import firmware_sim.device.build  # noqa: F401  what a device loads counts too
from firmware_sim.bundle.reader import open_bundle
from firmware_sim.playing.options import DqnOptions, PlayerOptions
from firmware_sim.playing.player import make_player
from firmware_sim.playing.replay import StackedReplay
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.training.prefixed import open_model
from firmware_sim.training.runtime import runtime_for


def main(bundle: Path, game: str, steps: int, batches: int, folder: Path | None) -> dict[str, Any]:
    opened = open_bundle(bundle)
    model = open_model(opened, runtime=runtime_for(opened), threads=1)
    options = PlayerOptions(
        game=game,
        replay_frames=2 * steps,
        replay_folder=folder,
        dqn=DqnOptions(warm_up_steps=steps),
    )
    task = make_player("atari", opened, options)
    assert isinstance(task.replay, StackedReplay), "Atari's are"
    losses = list(task.train(model, batches, "delta"))
    rng = np.random.default_rng(0)
    sampling, training = [], []
    for _ in range(batches):  # alternating, so that changes of the machine affect both
        begin = time.process_time()  # CPU time: other processes do not count
        batch = task.replay.sample(rng, opened.manifest.batch_size)
        drawn = time.process_time()
        model.call("train", **vars(batch))
        sampling.append(drawn - begin)
        training.append(time.process_time() - drawn)
    return {
        "game": game,
        "runtime": model.runtime,
        "on_disk": folder is not None,
        "steps": task.samples,
        "held_bytes": task.replay.held_bytes,
        "loss": float(np.mean(losses)),
        "sample_seconds": sampling,
        "step_seconds": training,
        "peak_bytes": peak_memory_bytes(),
    }


if __name__ == "__main__":
    path, name, played, drawn, *where = sys.argv[1:]
    disk = Path(where[0]) if where else None
    print(json.dumps(main(Path(path), name, int(played), int(drawn), disk)))
