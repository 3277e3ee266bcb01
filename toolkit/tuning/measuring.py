"""Times a branch's layers in a runtime that is installed here."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from firmware_sim.training.runtime import choose_runtime
from toolkit.autodiff.lower import part_bytes
from toolkit.branch.branch import Branch
from toolkit.errors import ExportError
from toolkit.fresh_process import report_of
from toolkit.tuning.candidates import write_candidates
from toolkit.tuning.files import MEASURED, SourcedTuning, read
from toolkit.tuning.layers import layers_of


def measure_tuning(
    branch: Branch,
    *,
    batch: int,
    runtime: str,
    threads: int,
    progress: Callable[[str], None] = lambda what: None,
) -> SourcedTuning:
    """The fastest formulation of each layer of the branch for a batch of that size."""
    choose_runtime(runtime)  # what is not installed is said before anything is converted
    layers = layers_of(branch)
    with tempfile.TemporaryDirectory() as folder:
        candidates, file = Path(folder) / "candidates", Path(folder) / "tuning.json"
        write_candidates(
            layers, batch, candidates, part_bytes=part_bytes(runtime), progress=progress
        )
        progress(f"timing {len(layers)} layers")
        time_candidates(candidates, file, runtime=runtime, threads=threads)
        return replace(read(file, runtime, layers), source=MEASURED)


def time_candidates(candidates: Path, file: Path, *, runtime: str, threads: int) -> None:
    """Writes a tuning file, in a fresh process: tflite-runtime bears no TensorFlow beside it."""
    command = [sys.executable, "-m", "firmware_sim.tune", str(candidates), "--out", str(file)]
    command += ["--runtime", runtime, "--threads", str(threads)]
    failure = f"the layers cannot be timed in {runtime}"
    report_of(command, failure=failure, error=ExportError)
