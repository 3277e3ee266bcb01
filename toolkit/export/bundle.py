"""The export, stage by stage: branch → training module → files → tried out → in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from broker.aggregator.slice_file import read_slice
from firmware_sim.bundle.manifest import Manifest
from firmware_sim.bundle.reader import (
    BRANCH,
    INFER,
    MODEL,
    PREDICT,
    PREFIX,
    SLICE,
    Bundle,
    open_bundle,
    write_manifest,
)
from firmware_sim.normalisation import Normalisation
from firmware_sim.training.limits import MIB, stored_bytes
from profiles import Profile
from toolkit.branch.branch import Branch
from toolkit.branch.counting import count
from toolkit.branch.drawn import trained_names
from toolkit.branch.stored import write_branch
from toolkit.conversion.convert import convert_module
from toolkit.errors import ExportError, ModelError
from toolkit.export.infer import convert_inference, synthetic_examples
from toolkit.export.manifest import describe
from toolkit.export.memory_estimate import estimate_memory
from toolkit.export.onnx.slice import build_slice
from toolkit.export.predict import convert_prediction
from toolkit.export.prefix import convert_prefix
from toolkit.export.trial import Progress, Trial, faster_tuning, fit_memory, make_module, try_out
from toolkit.tuning.files import SourcedTuning, shipped
from toolkit.writing import replacing

STAGES = ("trace", "convert", "slice", "quantise", "try out", "write")
TUNED_STAGES = (*STAGES[:-1], "tune", "write")  # what tuning is about follows after a colon


@dataclass(frozen=True, eq=False)
class Calibration:
    """Examples that int8 takes its ranges from, and where they come from."""

    source: str
    images: npt.NDArray[Any]  # as the branch sees them: normalised, if they are
    normalisation: Normalisation | None = None  # that devices are to apply


def export(
    branch: Branch,
    profile: Profile,
    target: Path,
    *,
    calibration: Calibration | None = None,
    progress: Progress = lambda stage: None,
    trained: Collection[str] | None = None,
    smaller: Callable[[], Branch] | None = None,
    tuning: SourcedTuning | None = None,
    tune: bool = False,
) -> Bundle:
    """Writes the bundle of `branch` for `profile`; each stage is passed to `progress` as it begins.

    `trained` are the tensors whose values were loaded, not drawn (`toolkit.branch.drawn`): in a
    fleet they win over those of other bundles. By default all are.

    If the branch does not fit into the profile's memory, the error says whether the branch
    that `smaller` returns would.

    `tuning` states the formulation of each convolution; by default it is the shipped one. With
    `tune` the formulations are also timed here, for the micro-batch that was found to fit, and
    that tuning is kept if a whole training step is faster with it and fits too.
    """
    tuning = tuning or shipped(profile.runtime)
    with replacing(target) as folder:
        progress("trace")
        module = make_module(branch, profile, profile.batch_size, tuning)

        progress("convert")
        model = convert_module(module)
        (folder / MODEL).write_bytes(model)

        progress("slice")
        loaded = trained_names(branch) if trained is None else trained
        sliced = build_slice(branch, loaded).SerializeToString(deterministic=True)
        (folder / SLICE).write_bytes(sliced)
        shared, _ = read_slice(sliced)  # refuses weights that are not finite, for example

        progress("quantise")
        calibration = calibration or Calibration("synthetic images", synthetic_examples(branch))
        prefix = b""
        if module.programs.cut is not None:
            prefix = convert_prefix(module, profile.frozen_precision, calibration.images)
            (folder / PREFIX).write_bytes(prefix)
        quantised = convert_inference(branch, profile.inference_quantisation, calibration.images)
        (folder / INFER).write_bytes(quantised)
        if branch.target is not None:  # it learns from examples, so it may stand in an application
            (folder / PREDICT).write_bytes(convert_prediction(module))

        progress("try out")
        trial = Trial(module, tuning, model, try_out(branch, profile, folder / MODEL))
        if not trial.fits(profile):
            trial = fit_memory(branch, profile, folder / MODEL, trial, smaller)
        if tune:
            progress("tune")
            trial = faster_tuning(branch, profile, folder / MODEL, trial, progress)
        (folder / MODEL).write_bytes(trial.model)

        progress("write")
        with contextlib.suppress(ModelError):  # then a checkout needs its Python file
            write_branch(branch, folder / BRANCH)
        manifest = describe(
            branch=branch,
            profile=profile,
            module=trial.module,
            tuning=trial.tuning,
            counts=count(branch),
            shared=shared,
            calibration=calibration.source,
            normalisation=calibration.normalisation,
            measured=trial.measured,
            estimated=estimate_memory(trial.module, trial.model, profile.runtime, prefix),
            folder=folder,
        )
        check_storage(manifest)
        write_manifest(folder, manifest)
    return open_bundle(target)


def check_storage(manifest: Manifest) -> None:
    """Refuses a bundle that the device could not keep together with its checkpoint."""
    needed, cap = stored_bytes(manifest) / MIB, manifest.profile.storage_cap_mib
    if needed > cap:
        raise ExportError(
            f"the bundle and a checkpoint take {needed:.1f} MiB on disk, and profile "
            f"{manifest.profile.name} allows {cap} MiB; a smaller branch would fit."
        )
