"""`toolkit bench stream`: what a device with a stream loses, takes, and how fast it answers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from firmware_sim.bundle.reader import Bundle
from firmware_sim.store.database import FILE, Database
from firmware_sim.store.spec import ExampleSpec
from firmware_sim.training.limits import MIB, stored_bytes
from toolkit.bench.stream.application import CLASSES, SHAPE
from toolkit.errors import ToolkitError
from toolkit.fresh_process import report_of

_PROGRAM = [sys.executable, "-m", "toolkit.bench.stream.application"]


def run_bench(
    folder: Path,
    *,
    kills: int,
    observations: int,
    answers: int,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    progress("exporting a branch of 128×6 windows for profile weak")
    bundle = _export(folder / "bundle")
    progress(f"killing a device {kills} times")
    killed = _kills(bundle, folder / "kills", kills) if kills else {}
    progress(f"{observations} observations")
    many = report_of(
        [*_PROGRAM, "many", str(bundle.folder), str(folder / "many"), str(observations)],
        failure="the device does not observe",
        error=ToolkitError,
    )
    timed = []
    for number in range(rounds):
        progress(f"answers while it trains: {number + 1} of {rounds}")
        state = str(folder / f"answers-{number}")
        command = [*_PROGRAM, "answers", str(bundle.folder), state, str(answers)]
        timed.append(report_of(command, failure="the device does not answer", error=ToolkitError))
    profile, measured = bundle.manifest.profile, bundle.measured
    return {
        "load": os.getloadavg()[0],
        "measured_at_export_bytes": measured.peak_bytes,
        "memory_cap_bytes": profile.memory_cap_mib * MIB,
        "storage_cap_bytes": profile.storage_cap_mib * MIB,
        "bundle_and_checkpoints_bytes": stored_bytes(bundle.manifest),
        "bundle_bytes": sum(f.stat().st_size for f in bundle.folder.iterdir()),
        "kills": killed,
        "observations": observations,
        "many": many,
        "answers": timed,
    }


def tables(report: dict[str, Any]) -> Iterator[Table]:
    table = Table("a device with stream and store", "found", "bound")
    if killed := report["kills"]:
        table.add_row("SIGKILL at random moments", str(killed["kills"]), "")
        table.add_row("examples that observe returned for", str(killed["returned"]), "")
        table.add_row("of these lost", str(killed["lost"]), "0")
        table.add_row("of these twice", str(killed["twice"]), "0")
        table.add_row("steps trained in the end", str(killed["steps"]), "> 0")
    many = report["many"]
    table.add_row("observations", f"{report['observations']:,}", "")
    table.add_row("observations a second, beside training", f"{many['per_second']:,.0f}", "2,000")
    cap = report["memory_cap_bytes"] / MIB
    table.add_row("peak memory (VmHWM)", f"{many['peak_bytes'] / MIB:.1f} MiB", f"{cap:.0f} MiB")
    measured = report["measured_at_export_bytes"] / MIB
    table.add_row("the same, as measured at export", f"{measured:.1f} MiB", f"{cap:.0f} MiB")
    stored = (many["stored_bytes"] + report["bundle_bytes"]) / MIB
    table.add_row(
        "storage with the bundle",
        f"{stored:.1f} MiB",
        f"{report['storage_cap_bytes'] / MIB:.0f} MiB",
    )
    alone, training = ([_late(times[k]) for times in report["answers"]] for k in _TIMES)
    ratios = [b / a for a, b in zip(alone, training, strict=True)]
    for name, values in (("without", alone), ("while", training)):
        shown = ", ".join(f"{1e3 * value:.2f}" for value in values)
        table.add_row(f"99th percentile of predict {name} training", f"{shown} ms", "")
    table.add_row("ratio", ", ".join(f"{ratio:.2f}" for ratio in ratios), "3")
    table.add_row("load of the machine", f"{report['load']:.1f}", "")
    yield table


_TIMES = ("alone_seconds", "training_seconds")


def _late(seconds: list[float]) -> float:
    return float(np.quantile(seconds, 0.99))


def _export(target: Path) -> Bundle:
    import keras

    from profiles import load_profile
    from toolkit.branch.branch import Branch
    from toolkit.export.bundle import export

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Reshape((SHAPE[0], 1, SHAPE[1])),
            keras.layers.Conv2D(16, (5, 1), strides=(2, 1), activation="relu", name="stem"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(CLASSES, name="head"),
        ]
    )
    return export(Branch("windows", model, ("stem",)), load_profile("weak"), target)


def _kills(bundle: Bundle, state: Path, count: int) -> dict[str, int]:
    """Kills an application again and again, and looks at the store after every kill."""
    rng = random.Random(0)
    returned = steps = -1
    lost = twice = 0
    for _ in range(count):
        command = [*_PROGRAM, "kills", str(bundle.folder), str(state)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            if not (said := running.stdout.readline()):
                raise ToolkitError("the device does not observe.")
            time.sleep(rng.uniform(0.0, 1.0))
            running.send_signal(signal.SIGKILL)
            said += running.stdout.read()
        returned, steps = json.loads(said.splitlines()[-1])
        found = _numbers(state)
        lost += len(set(range(returned + 1)) - set(found))
        twice += len(found) - len(set(found))
    return {"kills": count, "returned": returned + 1, "lost": lost, "twice": twice, "steps": steps}


def _numbers(state: Path) -> list[int]:
    """Returns the number of every window that is in the store."""
    database = Database(state / FILE)
    try:
        spec = ExampleSpec.from_json(database.about()["spec"])
        slots = [facts[0] for facts in database.all_facts()]
        return [int(spec.unpack(database.contents([slot]))[0][0, 0, 0]) for slot in slots]
    finally:
        database.close()
