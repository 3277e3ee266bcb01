"""The contest of `toolkit bench step`, and its tables."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from firmware_sim.training.runtime import installed_runtimes, runtime_version
from toolkit import zoo
from toolkit.bench.contest import BATCH, Progress, run_contest, run_contestant
from toolkit.bench.step import operations
from toolkit.bench.step.torch_step import describe
from toolkit.bench.zoo_bundles import Entry, chosen_entries
from toolkit.branch.counting import training_operations
from toolkit.conversion.convert import convert_module
from toolkit.errors import ToolkitError
from toolkit.training.module import TrainingModule

FLEX_TENSORFLOW = "2.18.1"
FLEX_ENVIRONMENT = Path(".venv-flex")


def run_bench(
    *,
    names: list[str],
    steps: int,
    rounds: int,
    threads: int,
    flex_python: Path | None,
    make_flex: bool,
    torch_python: Path | None,
    breakdown: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Returns the times of all contestants on the chosen branches of the zoo."""
    _check_python(torch_python)
    flex = _flex_environment(flex_python, make_flex, progress)
    entries = chosen_entries(names)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries:
            progress(f"{'-'.join(entry)}: converting")
            models = _models(entry, Path(folder))
            commands = _commands(entry, steps, threads, flex, torch_python, models)
            label = f"{'-'.join(entry)}: "
            runs = run_contest(
                commands, rounds=rounds, threads=threads, progress=progress, label=label
            )
            summary = _summary(entry, runs)
            if breakdown:
                progress(f"{'-'.join(entry)}: every operation alone")
                summary["operations"] = {
                    runtime: _operations(model, runtime, threads)
                    for runtime, model in models.items()
                }
            results.append(summary)
    return {
        "batch_size": BATCH,
        "threads": threads,
        "steps": steps,
        "rounds": rounds,
        "machine": platform.processor() or platform.machine(),
        "matmul_gflops": _matmul_gflops(),
        "flex": f"TensorFlow {FLEX_TENSORFLOW}" if flex else None,
        "runtimes": {name: runtime_version(name) for name in installed_runtimes()},
        "branches": results,
    }


def tables(report: dict[str, Any]) -> list[Table | str]:
    """Returns the tables to print: one for each branch."""
    notes: list[Table | str] = [
        f"one training step, batch {report['batch_size']}, {report['threads']} thread(s); "
        f"matrix products reach {report['matmul_gflops']:.0f} GFLOP/s here"
    ]
    for result in report["branches"]:
        columns = ("step", "× Flex", "× TF", "× torch", "peak", "of Flex's", "of matmul speed")
        table = Table(result["branch"], *columns)
        for name, entry in result["contestants"].items():
            share = result["flops"] / entry["step_seconds"] / 1e9 / report["matmul_gflops"]
            table.add_row(
                name,
                f"{entry['step_seconds'] * 1e3:.1f} ms",
                _ratio(entry["time_to_flex"]),
                _ratio(entry["time_to_tensorflow"]),
                _ratio(entry["time_to_pytorch"]),
                f"{entry['peak_bytes'] / 2**20:.0f} MiB",
                _ratio(entry["peak_to_flex"]),
                f"{share:.0%}",
            )
        notes.append(table)
        for runtime, timed in result.get("operations", {}).items():
            notes += operations.tables(f"{result['branch']}, {runtime}", timed)
    if report["flex"] is None:
        notes.append(
            "no Flex: TensorFlow 2.19 and later do not run it; give --flex-python, or --make-flex."
        )
    return notes


def _models(entry: Entry, folder: Path) -> dict[str, Path]:
    """Writes the branch as it is exported for each runtime; returns the files, by runtime."""
    models = {}
    for runtime in installed_runtimes():
        models[runtime] = folder / f"{'-'.join(entry)}-{runtime}.tflite"
        module = TrainingModule(zoo.build(*entry), batch=BATCH, runtime=runtime)
        models[runtime].write_bytes(convert_module(module))
    return models


def _commands(
    entry: Entry,
    steps: int,
    threads: int,
    flex: Path | None,
    torch: Path | None,
    models: dict[str, Path],
) -> dict[str, list[str]]:
    """Returns the command of each contestant."""
    here = sys.executable
    numbers = [str(steps), str(threads)]
    commands = {
        "TensorFlow": [
            here,
            "-m",
            "toolkit.bench.step.tensorflow_step",
            *entry,
            str(BATCH),
            *numbers,
        ]
    }
    folder = next(iter(models.values())).parent
    network = describe(zoo.build(*entry), BATCH)
    if torch is not None and network is not None:
        file = folder / f"{'-'.join(entry)}-torch.json"
        file.write_text(json.dumps(network))
        commands["PyTorch"] = [
            str(torch),
            "-m",
            "toolkit.bench.step.torch_step",
            str(file),
            *numbers,
        ]
    if flex is not None:
        model = folder / f"{'-'.join(entry)}-flex.tflite"
        convert = [str(flex), "-m", "toolkit.bench.step.flex", "convert", *entry]
        run_contestant([*convert, str(BATCH), str(model)], 2, failure="the Flex conversion failed")
        commands["Flex"] = [str(flex), "-m", "toolkit.bench.step.flex", "run", str(model), *numbers]
    for runtime, model in models.items():
        commands[runtime] = [
            *(here, "-m", "firmware_sim.measure", str(model), "--runtime", runtime),
            *("--steps", str(steps), "--threads", str(threads)),
        ]
    return commands


def _operations(model: Path, runtime: str, threads: int) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        found = operations.split(model.read_bytes())
        return operations.time_operations(found, Path(folder), runtime=runtime, threads=threads)


def _summary(entry: Entry, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    times = {
        name: [statistics.median(run["step_seconds"]) for run in found]
        for name, found in runs.items()
    }
    peaks = {
        name: statistics.median(run["peak_bytes"] for run in found) for name, found in runs.items()
    }

    def to(other: str, name: str) -> float | None:
        if other not in times:
            return None
        pairs = zip(times[name], times[other], strict=True)
        return float(statistics.median(mine / theirs for mine, theirs in pairs))

    return {
        "branch": "-".join(entry),
        "flops": 2 * BATCH * training_operations(zoo.build(*entry)),
        "contestants": {
            name: {
                "step_seconds": statistics.median(times[name]),
                "rounds": times[name],
                "peak_bytes": peaks[name],
                "time_to_flex": to("Flex", name),
                "time_to_tensorflow": to("TensorFlow", name),
                "time_to_pytorch": to("PyTorch", name),
                "peak_to_flex": peaks[name] / peaks["Flex"] if "Flex" in peaks else None,
            }
            for name in runs
        },
    }


def _matmul_gflops() -> float:
    """Returns the speed of one thread on a square matrix product that fits into the cache."""
    code = (
        "import json, time, numpy as np; a = np.random.rand(768, 768).astype('f');"
        "t = [];\n"
        "for _ in range(30):\n"
        "    s = time.perf_counter(); a @ a; t.append(time.perf_counter() - s)\n"
        "print(json.dumps({'gflops': 2 * 768**3 / sorted(t)[15] / 1e9}))"
    )
    command = [sys.executable, "-c", code]
    return float(run_contestant(command, 1, failure="the matrix product failed")["gflops"])


def _flex_environment(given: Path | None, make: bool, progress: Progress) -> Path | None:
    """Returns a Python that runs Flex: the given one, an existing one, a new one, or None."""
    if given is not None:
        _check_python(given)
        return given
    python = FLEX_ENVIRONMENT / "bin" / "python"
    if python.is_file():
        return python
    if not make:
        return None
    progress(f"making {FLEX_ENVIRONMENT} with TensorFlow {FLEX_TENSORFLOW}")
    subprocess.run([sys.executable, "-m", "venv", str(FLEX_ENVIRONMENT)], check=True)
    package = "tensorflow-cpu" if platform.machine() == "x86_64" else "tensorflow"
    install = [str(python), "-m", "pip", "install", "--quiet", f"{package}=={FLEX_TENSORFLOW}"]
    ran = subprocess.run(install, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise ToolkitError(f"cannot install {package} {FLEX_TENSORFLOW} into {FLEX_ENVIRONMENT}.")
    return python


def _check_python(given: Path | None) -> None:
    if given is not None and not given.is_file():
        raise ToolkitError(f"there is no Python at {given}.")


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
