"""`toolkit bench rl`: a player's steps per second with training, and what they take in memory.

Ours plays and trains in the TFLite runtime, as on a device. The same agent is also written the
ordinary way, with Keras' `predict_on_batch` and `train_on_batch`, and with TensorFlow's compiled
functions. Each runs in fresh processes, in turn; ratios are taken within a round, and medians over
rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from firmware_sim.errors import TaskError
from firmware_sim.playing.player import game_of
from toolkit.bench.rl_timing import bench_options
from toolkit.errors import ToolkitError
from toolkit.fresh_process import report_of

OURS, KERAS, COMPILED = "ours", "keras", "tf.function"
PROFILE = "gateway"  # has memory for whole batches
PARTS = ("environment", "act", "replay", "train", "rest")
Progress = Callable[[str], None]


def run_bench(
    *,
    task: str,
    game: str | None,
    branch: str,
    warm_up: int,
    steps: int,
    rounds: int,
    threads: int,
    progress: Progress,
) -> dict[str, Any]:
    """`steps` timed ones in each process, after `warm_up` in the replay."""
    played = _checked(task, game)
    with tempfile.TemporaryDirectory() as folder:
        progress(f"exporting {task}-{branch}")
        bundle = _export(task, branch, played, Path(folder) / "bundle")
        numbers = [str(warm_up), str(steps), str(threads)]
        here = [sys.executable, "-m"]
        agents = [*here, "toolkit.bench.rl_agents"]
        ours = [*here, "toolkit.bench.rl_device_process", str(bundle), task, played, *numbers]
        commands = {
            OURS: ours,
            KERAS: [*agents, KERAS, task, branch, played, *numbers],
            COMPILED: [*agents, COMPILED, task, branch, played, *numbers],
        }
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
        for turn in range(rounds):
            for name, command in commands.items():
                progress(f"{name}, round {turn + 1} of {rounds}")
                runs[name].append(_run(name, command, threads))
    return {
        "task": task,
        "game": played,
        "branch": branch,
        "warm_up": warm_up,
        "steps": steps,
        "rounds": rounds,
        "threads": threads,
        "runtime": runs[OURS][0]["runtime"],
        "exploration": bench_options(game_of(task, played), warm_up).last_exploration,
        "contestants": {name: _summary(name, runs) for name in runs},
        "parts": {p: statistics.median(run["parts"][p] for run in runs[OURS]) for p in PARTS},
    }


def tables(report: dict[str, Any]) -> list[Table | str]:
    """Who is how fast, and where our time goes."""
    speed = Table(
        f"{report['task']} {report['game']}, {report['branch']}",
        *("steps/s", "ours ×", "CPU of a step", "ours ×", "peak", "ours"),
    )
    for name, found in report["contestants"].items():
        other = name != OURS
        speed.add_row(
            report["runtime"] if name == OURS else name,
            f"{found['steps_per_second']:.1f}",
            f"{found['ours_faster']:.2f}" if other else "",
            f"{found['cpu_seconds'] * 1e3:.2f} ms",
            f"{found['ours_lighter']:.2f}" if other else "",
            f"{found['peak_bytes'] / 2**20:.0f} MiB",
            f"1/{found['ours_smaller']:.1f}" if other else "",
        )
    parts = Table("where our processor time goes", *PARTS)
    parts.add_row("", *(f"{report['parts'][part]:.1%}" for part in PARTS))
    return [
        f"one mini-batch of 32 per step of the game, ε = {report['exploration']:g}, "
        f"{report['warm_up']} steps remembered before the clock starts, "
        f"{report['threads']} thread(s); ours ×: how many times faster ours is, by the clock and "
        "by processor time, which other programs on the machine hardly change",
        speed,
        parts,
    ]


def _checked(task: str, game: str | None) -> str:
    """The game's name within its task."""
    try:
        return game_of(task, game).removeprefix("minatar/")
    except TaskError as error:
        raise ToolkitError(str(error)) from None


def _export(task: str, kind: str, game: str, target: Path) -> Path:
    # TensorFlow is loaded only now, when there is something to export.
    from firmware_sim.playing.environments import make_environment
    from profiles import load_profile
    from toolkit import zoo
    from toolkit.export.bundle import export
    from toolkit.export.calibration import calibration_for

    try:
        make_environment(game_of(task, game), 1).close()
    except TaskError as error:
        raise ToolkitError(str(error)) from None
    branch = zoo.build(task, kind, game=game if task == "minatar" else None)
    calibration = calibration_for(branch, task, None)
    return export(branch, load_profile(PROFILE), target, calibration=calibration).folder


def _run(name: str, command: list[str], threads: int) -> dict[str, Any]:
    environment = os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
    }
    return report_of(command, failure=f"the agent {name} failed", environment=environment)


def _summary(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    def median(what: str) -> float:
        return float(statistics.median(run[what] for run in runs[name]))

    pairs = list(zip(runs[OURS], runs[name], strict=True))
    return {
        "steps_per_second": median("steps_per_second"),
        "cpu_seconds": median("cpu_seconds"),
        "peak_bytes": median("peak_bytes"),
        "ours_faster": float(
            statistics.median(o["steps_per_second"] / t["steps_per_second"] for o, t in pairs)
        ),
        "ours_lighter": float(
            statistics.median(t["cpu_seconds"] / o["cpu_seconds"] for o, t in pairs)
        ),
        "ours_smaller": float(
            statistics.median(t["peak_bytes"] / o["peak_bytes"] for o, t in pairs)
        ),
    }
