"""What all contestants of `toolkit bench rl` have in common; this module loads no TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from firmware_sim.playing.options import DqnOptions, usual_options


def bench_options(game: str, warm_up: int) -> DqnOptions:
    """Returns the options of late training: ε is at its final value, most actions are greedy."""
    return replace(usual_options(game), warm_up_steps=warm_up, exploration_steps=0)


def timed(work: Callable[[], object], steps: int) -> dict[str, float]:
    """Returns the speed of `work`, which takes `steps` steps, in wall time and in CPU time."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {
        "steps_per_second": steps / (time.perf_counter() - wall),
        "cpu_seconds": (time.process_time() - processor) / steps,  # of a step
    }
