"""`toolkit bench models`: one line of JSON for each network and mode; a second run goes on."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from firmware_sim.training.runtime import installed_runtimes
from toolkit.bench.contest import Progress, run_contestant
from toolkit.errors import ToolkitError

MODES = ("full", "head")


def run_bench(
    *, families: list[str], batch: int, steps: int, lines: Path, progress: Progress
) -> list[dict[str, Any]]:
    """Returns all results; what `lines` holds already is not measured again."""
    done = _read(lines)
    for family in families:
        for mode in MODES:
            if not any((d["family"], d["mode"], d["batch"]) == (family, mode, batch) for d in done):
                progress(f"{family}, {mode}")
                done.append(_measured(family, mode, batch, steps))
                with lines.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    return done


def tables(results: list[dict[str, Any]]) -> list[Table]:
    table = Table("network", "trained", "gradient error", "runtime", "step ms", "peak MiB")
    for result in results:
        error = result.get("gradient_error")
        first = (result["family"], result["mode"], "-" if error is None else f"{error:.0e}")
        runs = result.get("runtimes") or {result.get("refused", "failed"): {}}
        for name, run in runs.items():
            figures = (f"{run[key]:.0f}" if key in run else "-" for key in ("step_ms", "peak_mib"))
            table.add_row(*first, name, *figures)
    return [table]


def _measured(family: str, mode: str, batch: int, steps: int) -> dict[str, Any]:
    result: dict[str, Any] = {"family": family, "mode": mode, "batch": batch, "runtimes": {}}
    package = "toolkit.bench.models"
    with tempfile.TemporaryDirectory() as folder:
        for runtime in installed_runtimes():
            file = str(Path(folder) / f"{runtime}.tflite")
            export = [sys.executable, "-m", f"{package}.export_process", family, mode]
            train = [sys.executable, "-m", f"{package}.step_process", runtime, file]
            try:
                failure = f"{family} was not exported"
                result |= run_contestant([*export, str(batch), runtime, file], 1, failure=failure)
                if "refused" in result:
                    break
                failure = f"{family} was not trained"
                result["runtimes"][runtime] = run_contestant(
                    [*train, str(steps)], 1, failure=failure
                )
            except ToolkitError as error:
                result["runtimes"][runtime] = {"failed": str(error)}
    return result


def _read(lines: Path) -> list[dict[str, Any]]:
    if not lines.exists():
        return []
    return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
