"""`toolkit bench rl`: steps per second of a player that trains, and its memory.

Ours plays and trains in the TFLite runtime, as on a device. The other contestants are the same
agent with Keras' `predict_on_batch` and `train_on_batch`, and with TensorFlow's compiled functions.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from firmware_sim.playing.player import game_of
from toolkit.bench.contest import BATCH, Progress, run_contest
from toolkit.bench.playing.timing import bench_options

OURS, KERAS, COMPILED = "ours", "keras", "tf.function"
PROFILE = "gateway"  # its memory cap allows whole batches
PARTS = ("environment", "act", "replay", "train", "rest")


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
    """Returns the speed of all contestants: `steps` timed steps after `warm_up` untimed ones."""
    played = game_of(task, game).removeprefix("minatar/")  # its name within the task
    with tempfile.TemporaryDirectory() as folder:
        progress(f"exporting {task}-{branch}")
        bundle = _export(task, branch, played, Path(folder) / "bundle")
        numbers = [str(warm_up), str(steps), str(threads)]
        here = [sys.executable, "-m"]
        agents = [*here, "toolkit.bench.playing.agents"]
        ours = [*here, "toolkit.bench.playing.device_process", str(bundle), task, played, *numbers]
        commands = {
            OURS: ours,
            KERAS: [*agents, KERAS, task, branch, played, *numbers],
            COMPILED: [*agents, COMPILED, task, branch, played, *numbers],
        }
        runs = run_contest(commands, rounds=rounds, threads=threads, progress=progress)
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
    """Returns the speeds of all contestants, and the parts of our processor time."""
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
        f"one mini-batch of {BATCH} per step of the game, ε = {report['exploration']:g}, "
        f"{report['warm_up']} steps remembered before the clock starts, "
        f"{report['threads']} thread(s); ours ×: how many times faster ours is, by the clock and "
        "by processor time, which other programs on the machine hardly change",
        speed,
        parts,
    ]


def _export(task: str, branch: str, game: str, folder: Path) -> Path:
    # TensorFlow is loaded only now, when there is something to export.
    from firmware_sim.playing.environments import make_environment
    from profiles import load_profile
    from toolkit.bench.zoo_bundles import build_branch, export_branch

    make_environment(game_of(task, game), 1).close()  # raises if the game cannot be played
    built = build_branch(task, branch, game=game)
    return export_branch(built, task, load_profile(PROFILE), folder).folder


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
