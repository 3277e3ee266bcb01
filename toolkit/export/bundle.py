"""The export, stage by stage: branch → training module → files → measured → in its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.slice import SliceError
from broker.slice_file import read_slice
from firmware_sim.bundle import INFER, MANIFEST, MODEL, SLICE, Bundle, open_bundle
from firmware_sim.measure import random_input
from firmware_sim.runtime import TensorSpec, choose_runtime, installed_runtimes
from profiles import Profile
from toolkit.branch import Branch
from toolkit.counting import count
from toolkit.errors import ExportError
from toolkit.export.convert import convert_module
from toolkit.export.infer import convert_inference, synthetic_examples
from toolkit.export.manifest import describe
from toolkit.export.onnx_slice import build_slice
from toolkit.export.writing import replacing
from toolkit.fresh_process import report_of
from toolkit.training.module import TrainingModule

STAGES = ("trace", "convert", "slice", "quantise", "try out", "write")
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
) -> Bundle:
    """Writes the bundle of `branch` for `profile`; `progress` hears each stage as it begins."""
    with replacing(target) as folder:
        progress("trace")
        module = TrainingModule(branch, batch=profile.batch_size, runtime=profile.runtime)

        progress("convert")
        (folder / MODEL).write_bytes(convert_module(module))

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
        measured = try_out(branch, profile, folder / MODEL)

        progress("write")
        manifest = describe(
            branch=branch,
            profile=profile,
            module=module,
            counts=count(branch),
            shared=shared,
            calibration=calibration.source,
            measured=measured,
            folder=folder,
        )
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return open_bundle(target)


def try_out(branch: Branch, profile: Profile, model: Path) -> dict[str, Any]:
    """Runs the model as a device would, in a fresh process for each runtime installed here.

    It must answer what Keras answers, and train within the profile's memory.
    """
    reports = {r: _measure(model, r, profile.threads) for r in installed_runtimes()}
    wanted = _keras_answer(branch)
    for runtime, report in reports.items():
        if not np.allclose(report["answer"], wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max()):
            raise ExportError(f"in {runtime} the converted branch does not answer what Keras does.")
    report = reports.get(profile.runtime) or reports[choose_runtime()]
    peak_mib = report["peak_bytes"] / 2**20
    if peak_mib > profile.memory_cap_mib:
        raise ExportError(
            f"training takes {peak_mib:.0f} MiB, and profile {profile.name} allows "
            f"{profile.memory_cap_mib} MiB; a smaller batch_size or branch would fit."
        )
    return {
        "runtime": report["runtime"],
        "runtime_version": report["runtime_version"],
        "threads": report["threads"],
        "peak_bytes": report["peak_bytes"],
        "start_bytes": report["start_bytes"],
        "step_seconds": float(np.median(report["step_seconds"])),
    }


def _measure(model: Path, runtime: str, threads: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "firmware_sim.measure", str(model)]
    command += ["--runtime", runtime, "--threads", str(threads)]
    failure = f"the branch does not train in {runtime}"
    return report_of(command, failure=failure, error=ExportError)


def _keras_answer(branch: Branch) -> npt.NDArray[np.float32]:
    """What Keras answers to the input that `firmware_sim.measure` draws."""
    spec = TensorSpec((1, *branch.input_shape), np.dtype(branch.input_dtype))
    x = random_input(np.random.default_rng(0), spec).astype(np.float32)
    return np.asarray(branch.model(x * np.float32(branch.input_scale))).ravel()
