"""`toolkit bench update`: every plan as a bundle, and devices that learn with it, in pairs.

What the folder holds already, a backbone, bundles and lines of results, is not made again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.tasks.cifar10 import read_cifar10
from profiles import load_profile
from toolkit.bench.contest import Progress, run_contestant
from toolkit.bench.update.pretraining import CAT, DOG, chosen_classes, pets_branch, pretrain
from toolkit.branch.branch import Branch
from toolkit.export.automatic import export_automatically
from toolkit.export.bundle import Calibration
from toolkit.export.bundle import export as write_bundle
from toolkit.updating.plans import ALL, AUTO, planned

INT8 = " int8"  # behind a plan: the frozen prefix in integers
PLANS = (ALL, AUTO, "last:1", "last:1" + INT8)
BACKBONE = "backbone.keras"
_NO_CAP_MIB = 4096  # a full update is measured whole, whatever the profile allows


def run_bench(
    folder: Path,
    *,
    data: Path,
    plans: Sequence[str],
    seeds: int,
    steps: int,
    pretraining: int,
    progress: Progress,
) -> dict[str, Any]:
    lines = folder / "learnt.jsonl"
    accuracy = pretrain(data, folder / BACKBONE, pretraining, progress)
    bundles = {plan: _bundle(folder, plan, steps, data, progress) for plan in plans}
    learnt = _read(lines)
    for seed in range(seeds):
        for plan in plans:
            if any((r["plan"], r["seed"], r["steps"]) == (plan, seed, steps) for r in learnt):
                continue
            progress(f"seed {seed}, plan {plan}")
            module = "toolkit.bench.update.process"
            command = [sys.executable, "-m", module, str(_place(folder, plan, steps)), str(data)]
            found = run_contestant([*command, str(seed), str(steps)], 1, failure=f"{plan} failed")
            learnt.append({"plan": plan, "seed": seed, "steps": steps, **found})
            with lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(learnt[-1]) + "\n")
    return {
        "pretrained": accuracy,
        "steps": steps,
        "plans": {plan: _costs(bundle) for plan, bundle in bundles.items()},
        "learnt": [r for r in learnt if r["steps"] == steps and r["seed"] < seeds],
    }


def tables(report: dict[str, Any]) -> list[Table]:
    title = f"cats and dogs, {report['steps']} steps of 32; ± is the standard error over seeds"
    names = ("plan", "tensors", "micro-batch", "peak MiB", "× all", "step ms", "× all")
    table = Table(*names, "accuracy", "against all", title=title)
    whole = report["plans"][ALL]
    for plan, cost in report["plans"].items():
        scores = _scores(report, plan)
        apart = 100 * (scores - _scores(report, ALL))
        table.add_row(
            plan,
            str(cost["tensors"]),
            str(cost["micro_batch"]),
            f"{cost['peak_mib']:.0f}",
            f"{cost['peak_mib'] / whole['peak_mib']:.2f}",
            f"{cost['step_ms']:.0f}",
            f"{cost['step_ms'] / whole['step_ms']:.2f}",
            f"{100 * scores.mean():.1f} % ± {_error(100 * scores):.1f}",
            "" if plan == ALL else f"{apart.mean():+.1f} ± {_error(apart):.1f} points",
        )
    return [table]


def _scores(report: dict[str, Any], plan: str) -> Any:
    return np.array([r["accuracy"] for r in report["learnt"] if r["plan"] == plan])


def _error(values: Any) -> float:
    """The standard error of a mean."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def _bundle(folder: Path, plan: str, steps: int, data: Path, progress: Progress) -> Bundle:
    target = _place(folder, plan, steps)
    if target.exists():
        return open_bundle(target)
    progress(f"exporting, plan {plan}")
    profile = load_profile("weak")
    if plan == ALL:
        profile = replace(profile, memory_cap_mib=_NO_CAP_MIB)
    if plan.endswith(INT8):
        profile = replace(profile, frozen_precision="int8")
    examples = read_cifar10(data)
    images, _ = chosen_classes(examples.x_train, examples.y_train, (CAT, DOG))
    calibration = Calibration("cats and dogs", images[:64])
    branch = pets_branch(folder / BACKBONE, steps)

    def write(chosen: Branch) -> Bundle:
        return write_bundle(chosen, profile, target, calibration=calibration)

    if plan.removesuffix(INT8) == AUTO:
        return export_automatically(branch, profile, calibration, write).bundle
    return write(planned(branch, plan.removesuffix(INT8)))


def _costs(bundle: Bundle) -> dict[str, Any]:
    manifest, measured = bundle.manifest, bundle.measured
    return {
        "tensors": sum(tensor.trainable for tensor in manifest.tensors),
        "micro_batch": manifest.micro_batch_size,
        "peak_mib": measured.peak_bytes / 2**20,
        "step_ms": 1e3 * measured.step_seconds,
    }


def _place(folder: Path, plan: str, steps: int) -> Path:
    """The learning rate falls over the steps, so that a bundle is for one number of them."""
    return folder / f"{plan.replace(':', '-').replace(' ', '-')}-{steps}"


def _read(lines: Path) -> list[dict[str, Any]]:
    if not lines.exists():
        return []
    return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
