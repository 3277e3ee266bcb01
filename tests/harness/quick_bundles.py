"""Bundles of tiny branches, converted and not tried out, which saves two processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from broker.aggregator.slice_file import read_slice
from firmware_sim.bundle.manifest import Measured
from firmware_sim.bundle.reader import INFER, MODEL, SLICE, Bundle, open_bundle, write_manifest
from profiles import load_profile
from toolkit.branch.branch import Branch
from toolkit.branch.counting import count
from toolkit.conversion.convert import convert_module
from toolkit.export.manifest import describe
from toolkit.export.memory_estimate import estimate_memory
from toolkit.export.onnx.slice import build_slice
from toolkit.export.trial import make_module
from toolkit.tuning.files import shipped


def quick_bundle(branch: Branch, profile: str, folder: Path, *, batch: int = 16) -> Bundle:
    """Returns the bundle of a branch; its infer.tflite is none."""
    folder.mkdir()
    chosen = replace(load_profile(profile), batch_size=batch, runtime="ai-edge-litert")
    tuning = shipped(chosen.runtime)
    module = make_module(branch, chosen, batch, tuning)
    model = convert_module(module)
    sliced = build_slice(branch).SerializeToString(deterministic=True)
    shared, _ = read_slice(sliced)
    for name, data in ((MODEL, model), (SLICE, sliced), (INFER, b"none")):
        (folder / name).write_bytes(data)
    manifest = describe(
        branch=branch,
        profile=chosen,
        module=module,
        tuning=tuning,
        counts=count(branch),
        shared=shared,
        calibration="none",
        normalisation=None,
        measured=Measured(chosen.runtime, "0", 1, 2**20, 2**20, 0.01),
        estimated=estimate_memory(module, model, chosen.runtime),
        folder=folder,
    )
    write_manifest(folder, manifest)
    return open_bundle(folder)
