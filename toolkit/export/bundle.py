"""The export, stage by stage: branch → training module → files → measured → in its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.aggregator.slice_file import read_slice
from broker.errors import SliceError
from firmware_sim.bundle.reader import INFER, MANIFEST, MODEL, SLICE, Bundle, open_bundle
from firmware_sim.probe import random_input
from firmware_sim.training.limits import MIB, stored_bytes
from firmware_sim.training.runtime import TensorSpec, choose_runtime, installed_runtimes
from profiles import Profile
from toolkit.autodiff.lower import Tuning
from toolkit.branch.branch import Branch
from toolkit.branch.counting import count
from toolkit.conversion.convert import convert_module
from toolkit.errors import ExportError
from toolkit.export.infer import convert_inference, synthetic_examples
from toolkit.export.manifest import describe
from toolkit.export.memory_estimate import RESERVE_MIB, estimate_memory, fits, largest_micro_batch
from toolkit.export.onnx.slice import build_slice
from toolkit.fresh_process import report_of
from toolkit.training.module import TrainingModule
from toolkit.tuning.files import SourcedTuning, shipped
from toolkit.tuning.measuring import measure_tuning
from toolkit.writing import replacing

STAGES = ("trace", "convert", "slice", "quantise", "try out", "write")
TUNED_STAGES = (*STAGES[:-1], "tune", "write")  # what tuning is about follows after a colon
Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Examples that int8 takes its ranges from, and where they come from."""

    source: str
    images: npt.NDArray[Any]


def export(
    branch: Branch,
    profile: Profile,
    target: Path,
    *,
    calibration: Calibration | None = None,
    progress: Progress = lambda stage: None,
    smaller: Callable[[], Branch] | None = None,
    tuning: SourcedTuning | None = None,
    tune: bool = False,
) -> Bundle:
    """Writes the bundle of `branch` for `profile`; `progress` hears each stage as it begins.

    If the branch does not fit into the profile's memory, the refusal says whether the one that
    `smaller` makes would.

    Convolutions are formulated as `tuning` says, by default the shipped one. With `tune` they are
    timed here as well, for the micro-batch that was found to fit, and what is faster by a whole
    step is kept, if it fits too.
    """
    tuning = tuning or shipped(profile.runtime)
    with replacing(target) as folder:
        progress("trace")
        module = make_module(branch, profile, profile.batch_size, tuning)

        progress("convert")
        model = convert_module(module)
        (folder / MODEL).write_bytes(model)

        progress("slice")
        sliced = build_slice(branch).SerializeToString(deterministic=True)
        (folder / SLICE).write_bytes(sliced)
        try:
            shared, _ = read_slice(sliced)
        except SliceError as error:  # weights that are not finite, for example
            raise ExportError(str(error)) from error

        progress("quantise")
        calibration = calibration or Calibration("synthetic images", synthetic_examples(branch))
        quantised = convert_inference(branch, profile.inference_quantisation, calibration.images)
        (folder / INFER).write_bytes(quantised)

        progress("try out")
        tried = Tried(module, tuning, model, try_out(branch, profile, folder / MODEL))
        if not tried.fits(profile):
            tried = fit_memory(branch, profile, folder / MODEL, tried, smaller)
        if tune:
            progress("tune")
            tried = _tuned(branch, profile, folder / MODEL, tried, progress)
        (folder / MODEL).write_bytes(tried.model)

        progress("write")
        manifest = describe(
            branch=branch,
            profile=profile,
            module=tried.module,
            tuning=tried.tuning,
            counts=count(branch),
            shared=shared,
            calibration=calibration.source,
            measured=tried.measured,
            estimated=asdict(estimate_memory(tried.module, tried.model, profile.runtime)),
            folder=folder,
        )
        check_storage(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return open_bundle(target)


@dataclass(frozen=True, eq=False)
class Tried:
    """A model that was tried out, and what it took."""

    module: TrainingModule
    tuning: SourcedTuning
    model: bytes
    measured: dict[str, Any]

    def fits(self, profile: Profile) -> bool:
        return fits(self.measured["peak_bytes"], profile.memory_cap_mib)


def make_module(
    branch: Branch, profile: Profile, micro_batch: int, tuning: Tuning | None = None
) -> TrainingModule:
    return TrainingModule(
        branch,
        batch=profile.batch_size,
        micro_batch=micro_batch,
        runtime=profile.runtime,
        tuning=tuning,
    )


def fit_memory(
    branch: Branch,
    profile: Profile,
    draft: Path,
    whole: Tried,
    smaller: Callable[[], Branch] | None,
) -> Tried:
    """The largest micro-batch that fits, tried out as `draft`; the whole batch did not.

    A branch that does not fit in micro-batches of one sample is refused.
    """
    tried = {profile.batch_size: whole}

    def attempt(micro_batch: int) -> bool:
        tried[micro_batch] = _try_micro_batch(branch, profile, draft, micro_batch, whole.tuning)
        return tried[micro_batch].fits(profile)

    chosen = largest_micro_batch(profile.batch_size, attempt)
    if chosen is None:
        least = tried[min(tried)]
        raise ExportError(too_large(profile, least) + _advice(profile, draft, smaller))
    return tried[chosen]


def _try_micro_batch(
    branch: Branch, profile: Profile, draft: Path, micro_batch: int, tuning: SourcedTuning
) -> Tried:
    module = make_module(branch, profile, micro_batch, tuning)
    model = convert_module(module)
    draft.write_bytes(model)
    return Tried(module, tuning, model, try_out(branch, profile, draft))


def _tuned(
    branch: Branch, profile: Profile, draft: Path, untuned: Tried, progress: Progress
) -> Tried:
    """The faster of what was tried and the same micro-batch by a tuning that is measured now.

    Layers are timed alone, so a whole step decides.
    """
    micro_batch = untuned.module.micro_batch
    tuning = measure_tuning(
        branch,
        batch=micro_batch,
        runtime=profile.runtime,
        threads=profile.threads,
        progress=lambda what: progress(f"tune: {what}"),
    )
    tuned = _try_micro_batch(branch, profile, draft, micro_batch, tuning)
    faster = tuned.measured["step_seconds"] <= untuned.measured["step_seconds"]
    return tuned if faster and tuned.fits(profile) else untuned


def too_large(profile: Profile, least: Tried) -> str:
    """By how much a branch misses the cap."""
    peak_mib = least.measured["peak_bytes"] / MIB
    return (
        f"training takes {peak_mib:.0f} MiB even in micro-batches of {least.module.micro_batch}, "
        f"{peak_mib + RESERVE_MIB - profile.memory_cap_mib:.1f} MiB more than profile "
        f"{profile.name} leaves of its {profile.memory_cap_mib} MiB"
    )


def _advice(profile: Profile, draft: Path, smaller: Callable[[], Branch] | None) -> str:
    """Whether a smaller branch would fit, by trying it out."""
    if smaller is None:
        return "; a branch with fewer or narrower layers would take less."
    branch = smaller()
    least = _try_micro_batch(branch, profile, draft, 1, shipped(profile.runtime))
    peak_mib = least.measured["peak_bytes"] / MIB
    if least.fits(profile):
        return f"; the branch {branch.name} fits, in {peak_mib:.0f} MiB."
    return f", and the branch {branch.name} does not fit either, with {peak_mib:.0f} MiB."


def check_storage(manifest: dict[str, Any]) -> None:
    """Refuses a bundle that the device could not keep together with its checkpoint."""
    needed, cap = stored_bytes(manifest) / MIB, manifest["profile"]["storage_cap_mib"]
    if needed > cap:
        raise ExportError(
            f"the bundle and a checkpoint take {needed:.1f} MiB on disk, and profile "
            f"{manifest['profile']['name']} allows {cap} MiB; a smaller branch would fit."
        )


def try_out(branch: Branch, profile: Profile, model: Path) -> dict[str, Any]:
    """Runs the model as a device would, in a fresh process for each runtime installed here.

    It must answer what Keras answers. The figures are those of the profile's runtime.
    """
    reports = {r: _measure(model, r, profile) for r in installed_runtimes()}
    wanted = _keras_answer(branch)
    for runtime, report in reports.items():
        if not np.allclose(report["answer"], wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max()):
            raise ExportError(f"in {runtime} the converted branch does not answer what Keras does.")
    report = reports.get(profile.runtime) or reports[choose_runtime()]
    return {
        "runtime": report["runtime"],
        "runtime_version": report["runtime_version"],
        "threads": report["threads"],
        "peak_bytes": report["peak_bytes"],
        "start_bytes": report["start_bytes"],
        "step_seconds": float(np.median(report["step_seconds"])),
    }


def _measure(model: Path, runtime: str, profile: Profile) -> dict[str, Any]:
    command = [sys.executable, "-m", "firmware_sim.measure", str(model), "--device"]
    command += ["--runtime", runtime, "--threads", str(profile.threads)]
    command += ["--batch", str(profile.batch_size)]
    failure = f"the branch does not train in {runtime}"
    return report_of(command, failure=failure, error=ExportError)


def _keras_answer(branch: Branch) -> npt.NDArray[np.float32]:
    """What Keras answers to the input that `firmware_sim.measure` draws."""
    spec = TensorSpec((1, *branch.input_shape), np.dtype(branch.input_dtype))
    x = random_input(np.random.default_rng(0), spec).astype(np.float32)
    return np.asarray(branch.model(x * np.float32(branch.input_scale))).ravel()
