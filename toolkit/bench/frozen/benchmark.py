"""A head above a frozen MobileNetV2: a training step beside plain inference of the backbone.

Inference takes the whole batch at once in `prefix.tflite` of that batch; a device takes it in the
micro-batches of its prefix. All contestants run in turn, so ratios are taken within a round.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.table import Table

from firmware_sim.training.runtime import installed_runtimes
from toolkit.bench.contest import BATCH, Progress, run_contest
from toolkit.branch.branch import Branch
from toolkit.conversion.convert import convert_module
from toolkit.export.infer import synthetic_examples
from toolkit.export.prefix import convert_prefix
from toolkit.training.module import TrainingModule

SIDE, WIDTH, CLASSES = 96, 0.35, 4
INFERENCE = "inference"


def backbone_with_head() -> Branch:
    """MobileNetV2 without trained weights, frozen, and a dense head that is shared."""
    base = keras.applications.MobileNetV2(
        (SIDE, SIDE, 3), alpha=WIDTH, include_top=False, weights=None, pooling="avg"
    )
    base.trainable = False
    x = keras.Input((SIDE, SIDE, 3))
    y = keras.layers.Dense(CLASSES, name="head")(base(x))
    return Branch("frozen", keras.Model(x, y), ("head",))


def run_benchmark(
    folder: Path,
    *,
    steps: int,
    rounds: int,
    threads: int,
    torch_python: Path | None,
    progress: Progress,
) -> dict[str, Any]:
    """Returns every report, by runtime and contestant."""
    progress("converting")
    branch = backbone_with_head()
    module = TrainingModule(branch, batch=BATCH, runtime=installed_runtimes()[0])
    examples = synthetic_examples(branch)
    files = {
        "model.tflite": convert_module(module),
        "whole.tflite": convert_prefix(module, "float32", examples, size=BATCH),
        "float32.tflite": convert_prefix(module, "float32", examples),
        "int8.tflite": convert_prefix(module, "int8", examples),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    reports: dict[str, Any] = {}
    for runtime in installed_runtimes():

        def command(kind: str, *names: str, runtime: str = runtime) -> list[str]:
            paths = [str(folder / name) for name in names]
            numbers = [str(steps), str(threads)]
            module = "toolkit.bench.frozen.process"
            return [sys.executable, "-m", module, kind, runtime, *numbers, *paths]

        commands = {
            INFERENCE: command(INFERENCE, "whole.tflite"),
            "step": command("step", "model.tflite", "float32.tflite"),
            "step, prefix in int8": command("step", "model.tflite", "int8.tflite"),
            "step, features kept": command("cached", "model.tflite", "float32.tflite"),
        }
        if torch_python is not None:
            script = ["-m", "toolkit.bench.frozen.torch_head", str(steps), str(threads)]
            commands["step in PyTorch"] = [str(torch_python), *script]
        reports[runtime] = run_contest(
            commands, rounds=rounds, threads=threads, progress=progress, label=f"{runtime}: "
        )
    return {"batch": BATCH, "steps": steps, "threads": threads, "reports": reports}


def tables(report: dict[str, Any]) -> list[Table]:
    """Of each round the fastest step, since others may use the machine, and the medians of those.

    Ratios are of one round each.
    """
    found = []
    for runtime, contestants in report["reports"].items():
        title = f"frozen MobileNetV2 {WIDTH}, {SIDE}×{SIDE}, batch of {report['batch']}: {runtime}"
        table = Table("contestant", "ms", "× inference", "peak MiB", "× inference", title=title)
        plain = contestants[INFERENCE]
        for name, runs in contestants.items():
            times = [min(run["step_seconds"]) for run in runs]
            ratios = [t / min(r["step_seconds"]) for t, r in zip(times, plain, strict=True)]
            peaks = [run["peak_bytes"] for run in runs]
            growth = [p / r["peak_bytes"] for p, r in zip(peaks, plain, strict=True)]
            table.add_row(
                name,
                f"{np.median(times) * 1e3:.1f}",
                f"{np.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
                f"{np.median(peaks) / 2**20:.0f}",
                f"{np.median(growth):.2f}",
            )
        found.append(table)
    return found
