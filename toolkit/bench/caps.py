"""`toolkit bench caps`: the zoo's branches under the memory caps of the shipped profiles.

Every branch is exported for every profile. The export refuses it, or a real device trains it alone
for some rounds, and the kernel's peak memory of that process is compared with the cap. Digits are
real, Breakout is played, and CIFAR-10's images are noise, because only memory is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from broker.protocol.messages import Shared, Update, to_bytes
from broker.protocol.quantisation import encode_tensors
from broker.protocol.slice import Slice
from firmware_sim.bundle.reader import Bundle
from profiles import Profile, load_profile
from toolkit import zoo
from toolkit.bench.contest import Progress
from toolkit.bench.zoo_bundles import Entry, build_branch, chosen_entries, export_branch
from toolkit.branch.counting import count
from toolkit.errors import ExportError, ToolkitError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Row:
    """One branch under one profile; sizes in bytes."""

    profile: str
    branch: str
    cap: int
    refused: str = ""  # the reason, in one sentence; then the fields below have no meaning
    estimated: int = 0
    measured: int = 0  # peak in the trial of the export
    device: int = 0  # peak of a device that ran for some rounds
    micro_batch: int = 0
    step_seconds: float = 0.0
    up: int = 0  # of one update in the profile's encoding
    down: int = 0  # of θ_shared
    homogeneous: int = 0  # of a float32 update if all devices shared the lightweight branch
    accuracy: float | None = None  # digits: after the rounds


def run_bench(
    folder: Path,
    *,
    profiles: Sequence[str],
    names: Sequence[str],
    rounds: int,
    steps: int,
    progress: Progress,
) -> dict[str, Any]:
    """Measures the branches whose names contain one of `names` under all chosen profiles."""
    entries = chosen_entries(names)
    noise = _write_noise(folder / "noise.npz")
    rows = []
    for name in profiles:
        profile = load_profile(name)
        for entry in entries:
            label = f"{'-'.join(entry)} for {name}"
            progress(f"{label}: exporting")
            target = folder / profile.name / "-".join(entry)
            target.parent.mkdir(parents=True, exist_ok=True)
            rows.append(_row(profile, entry, target, noise, (rounds, steps), progress, label))
    return {"rounds": rounds, "steps": steps, "rows": [asdict(row) for row in rows]}


def _row(
    profile: Profile,
    entry: Entry,
    target: Path,
    noise: Path,
    work: tuple[int, int],
    progress: Progress,
    label: str,
) -> Row:
    task, _, topology = entry
    branch = build_branch(*entry)
    known = Row(profile=profile.name, branch="-".join(entry), cap=profile.memory_cap_mib * MIB)
    try:
        bundle = export_branch(branch, task, profile, target)
    except ExportError as error:
        return replace(known, refused=str(error))
    progress(f"{label}: a device under its cap")
    peak, scores = _run_device(bundle, task, noise, work)
    up, down = message_bytes(bundle.manifest.shared, profile.update_quantisation)
    return replace(
        known,
        estimated=bundle.manifest.estimated["peak_bytes"],
        measured=bundle.measured.peak_bytes,
        device=peak,
        micro_batch=bundle.manifest.micro_batch_size,
        step_seconds=bundle.measured.step_seconds,
        up=up,
        down=down,
        homogeneous=4 * count(zoo.build(task, "lightweight", topology)).parameters,
        accuracy=scores.get("accuracy") if task == "digits" else None,
    )


def message_bytes(shared: Slice, encoding: str) -> tuple[int, int]:
    """Returns the bytes of an update in this encoding and of θ_shared in float32, with headers."""
    rng = np.random.default_rng(0)
    tensors = {t.name: rng.standard_normal(t.shape, dtype=np.float32) for t in shared.tensors}
    update = Update(
        device="device",
        run="0" * 16,
        round=1000,
        nonce="0" * 32,
        samples=1000,
        exchange="delta",
        fingerprint=shared.fingerprint,
        encoding=encoding,
        tensors=encode_tensors(tensors, encoding, rng, everything=True),
    )
    theta = Shared(run="0" * 16, round=1000, fingerprint=shared.fingerprint, tensors=tensors)
    return len(to_bytes(update)), len(to_bytes(theta))


def _run_device(
    bundle: Bundle, task: str, noise: Path, work: tuple[int, int]
) -> tuple[int, dict[str, float]]:
    """Runs a device; returns its peak memory and its scores."""
    rounds, steps = work
    data = ["--task", "npz", "--data", str(noise)] if task == "cifar10" else ["--task", task]
    state = bundle.folder.with_name(f"{bundle.folder.name}-state")
    command = [sys.executable, "-m", "firmware_sim.device", "--isolated", *data]
    command += ["--bundle", str(bundle.folder), "--state", str(state)]
    command += ["--rounds", str(rounds), "--steps", str(steps)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise ToolkitError(f"{bundle.folder.name} does not run under its cap: {last}")
    peaks = [e["peak_bytes"] for e in _events(ran.stderr) if e["event"] == "ended"]
    return peaks[-1], json.loads(ran.stdout.splitlines()[-1])


def _events(text: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in text.splitlines() if line.startswith("{"))


def _write_noise(file: Path) -> Path:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (640, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 640, dtype=np.int32)
    np.savez(file, x_train=images, y_train=labels, x_test=images[:64], y_test=labels[:64])
    return file


def tables(report: dict[str, Any]) -> list[Table | str]:
    """Returns a table with a row for each branch and profile, and the refusals."""
    table = Table(
        "profile", "branch", "cap", "estimate", "measured", "device", "micro-batch", "step",
        "up", "down", "up, of homogeneous", "accuracy",
        title=f"devices alone, {report['rounds']} rounds of {report['steps']} mini-batches; MiB",
    )  # fmt: skip
    refused = []
    for values in report["rows"]:
        row = Row(**values)
        if row.refused:
            refused.append(f"{row.branch} for {row.profile}: {row.refused}")
            continue
        memory = (row.cap, row.estimated, row.measured, row.device)
        table.add_row(
            row.profile,
            row.branch,
            *(f"{size / MIB:.0f}" for size in memory),
            str(row.micro_batch),
            f"{row.step_seconds * 1e3:.1f} ms",
            f"{row.up / 1e3:,.1f} kB",
            f"{row.down / 1e3:,.1f} kB",
            f"{row.up / row.homogeneous:.0%}",
            "" if row.accuracy is None else f"{row.accuracy:.1%}",
        )
    return [table, *(f"refused: {sentence}" for sentence in refused)]
