"""Tries converted branches out in fresh processes, as a device would run them.

What a trial measures decides the micro-batch, and which of two tunings is kept.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_sim.bundle.manifest import Measured
from firmware_sim.bundle.reader import MODEL, PREDICT, PREFIX
from firmware_sim.probe import random_input
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.limits import MIB
from firmware_sim.training.runtime import choose_runtime, installed_runtimes
from profiles import Profile
from toolkit.autodiff.lower import Tuning
from toolkit.branch.branch import Branch
from toolkit.conversion.convert import convert_module
from toolkit.errors import ExportError
from toolkit.export.memory_estimate import RESERVE_MIB, fits, largest_micro_batch
from toolkit.fresh_process import report_of
from toolkit.training.module import TrainingModule
from toolkit.tuning.files import SourcedTuning, shipped
from toolkit.tuning.measuring import measure_tuning

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Trial:
    """A model that was tried out, and what was measured."""

    module: TrainingModule
    tuning: SourcedTuning
    model: bytes
    measured: Measured

    def fits(self, profile: Profile) -> bool:
        return fits(self.measured.peak_bytes, profile.memory_cap_mib)


def make_module(
    branch: Branch, profile: Profile, micro_batch: int, tuning: Tuning
) -> TrainingModule:
    """The training module of the branch for the profile's batch and runtime."""
    return TrainingModule(
        branch,
        batch=profile.batch_size,
        micro_batch=micro_batch,
        runtime=profile.runtime,
        tuning=tuning,
    )


def try_out(branch: Branch, profile: Profile, model: Path) -> Measured:
    """Runs the model as a device would, in a fresh process for each runtime installed here.

    A prefix stands beside the model. The output must equal that of Keras, and be a number where the
    prefix is in int8. What is measured is that of the profile's runtime.
    """
    rounded = model.with_name(PREFIX).exists() and profile.frozen_precision == "int8"
    reports = {r: _measure(model, r, profile) for r in installed_runtimes()}
    wanted = _keras_output(branch)
    for runtime, report in reports.items():
        near = np.isfinite(report["answer"]).all() if rounded else _equal(report["answer"], wanted)
        if not near:
            raise ExportError(f"in {runtime} the converted branch does not answer what Keras does.")
    report = reports.get(profile.runtime) or reports[choose_runtime()]
    return Measured(
        runtime=report["runtime"],
        runtime_version=report["runtime_version"],
        threads=report["threads"],
        peak_bytes=report["peak_bytes"],
        start_bytes=report["start_bytes"],
        step_seconds=float(np.median(report["step_seconds"])),
    )


def try_micro_batch(
    branch: Branch, profile: Profile, draft: Path, micro_batch: int, tuning: SourcedTuning
) -> Trial:
    """Converts the branch for one size of micro-batch into the file `draft`, and tries it out."""
    module = make_module(branch, profile, micro_batch, tuning)
    model = convert_module(module)
    draft.write_bytes(model)
    return Trial(module, tuning, model, try_out(branch, profile, draft))


def fit_memory(
    branch: Branch,
    profile: Profile,
    draft: Path,
    whole: Trial,
    smaller: Callable[[], Branch] | None,
) -> Trial:
    """A trial of the largest micro-batch that fits, in the file `draft`; the whole batch did not.

    A branch that does not fit in micro-batches of one sample is refused.
    """
    tried = {profile.batch_size: whole}

    def attempt(micro_batch: int) -> bool:
        tried[micro_batch] = try_micro_batch(branch, profile, draft, micro_batch, whole.tuning)
        return tried[micro_batch].fits(profile)

    chosen = largest_micro_batch(profile.batch_size, attempt)
    if chosen is None:
        least = tried[min(tried)]
        raise ExportError(_too_large(profile, least) + _advice(profile, smaller))
    return tried[chosen]


def faster_tuning(
    branch: Branch, profile: Profile, draft: Path, untuned: Trial, progress: Progress
) -> Trial:
    """The faster of `untuned` and the same micro-batch with a tuning that is measured now.

    The tuning is made from layers that run alone, so a whole training step decides.
    """
    micro_batch = untuned.module.micro_batch
    tuning = measure_tuning(
        branch,
        batch=micro_batch,
        runtime=profile.runtime,
        threads=profile.threads,
        progress=lambda what: progress(f"tune: {what}"),
    )
    tuned = try_micro_batch(branch, profile, draft, micro_batch, tuning)
    faster = tuned.measured.step_seconds <= untuned.measured.step_seconds
    return tuned if faster and tuned.fits(profile) else untuned


def _too_large(profile: Profile, least: Trial) -> str:
    """By how much a branch misses the cap."""
    peak_mib = least.measured.peak_bytes / MIB
    return (
        f"training takes {peak_mib:.0f} MiB even in micro-batches of {least.module.micro_batch}, "
        f"{peak_mib + RESERVE_MIB - profile.memory_cap_mib:.1f} MiB more than profile "
        f"{profile.name} leaves of its {profile.memory_cap_mib} MiB"
    )


def _advice(profile: Profile, smaller: Callable[[], Branch] | None) -> str:
    """Whether a smaller branch would fit, by trying it out."""
    if smaller is None:
        return "; a branch with fewer or narrower layers would take less."
    branch = smaller()
    with tempfile.TemporaryDirectory() as folder:  # a prefix beside the draft is not of this branch
        draft = Path(folder) / MODEL
        least = try_micro_batch(branch, profile, draft, 1, shipped(profile.runtime))
    peak_mib = least.measured.peak_bytes / MIB
    if least.fits(profile):
        return f"; the branch {branch.name} fits, in {peak_mib:.0f} MiB."
    return f", and the branch {branch.name} does not fit either, with {peak_mib:.0f} MiB."


def _measure(model: Path, runtime: str, profile: Profile) -> dict[str, Any]:
    command = [sys.executable, "-m", "firmware_sim.measure", str(model), "--device"]
    command += ["--runtime", runtime, "--threads", str(profile.threads)]
    command += ["--batch", str(profile.batch_size)]
    if (prefix := model.with_name(PREFIX)).exists():
        command += ["--prefix", str(prefix)]
    if (predict := model.with_name(PREDICT)).exists():
        command += ["--predict", str(predict)]
    failure = f"the branch does not train in {runtime}"
    return report_of(command, failure=failure, error=ExportError)


def _equal(found: Sequence[float], wanted: npt.NDArray[np.float32]) -> bool:
    return np.allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def _keras_output(branch: Branch) -> npt.NDArray[np.float32]:
    """The output of Keras for the input that `firmware_sim.measure` draws."""
    spec = TensorSpec((1, *branch.input_shape), np.dtype(branch.input_dtype))
    x = random_input(np.random.default_rng(0), spec).astype(np.float32)
    return np.asarray(branch.model(x * np.float32(branch.input_scale))).ravel()
