"""A new `infer.tflite` from the weights that a device has trained, put in place of the old one."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from firmware_sim.bundle.reader import (
    FILES,
    INFER,
    MANIFEST,
    MODEL,
    SLICE,
    Bundle,
    file_entry,
    open_bundle,
    write_manifest,
)
from firmware_sim.tasks import cifar10, digits
from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.labelled import Examples, check_examples, check_kind
from firmware_sim.training.runtime import runtime_for
from toolkit.branch.branch import Branch
from toolkit.errors import ExportError, ModelError
from toolkit.export.bundle import Calibration
from toolkit.export.calibration import COUNT, calibration_for
from toolkit.export.infer import convert_inference
from toolkit.export.trial import Progress
from toolkit.fresh_process import report_of
from toolkit.trained.comparison import PARITY_EXAMPLES, Comparison
from toolkit.trained.weights import TrainedWeights, put_weights, read_weights, rebuild
from toolkit.writing import replacing

STAGES = ("read", "rebuild", "quantise", "compare", "write")
MOST_EXAMPLES = 2000  # one inference each, twice; chosen evenly from more


@dataclass(frozen=True, eq=False)
class Requantised:
    """The bundle with its new inference model, and what was compared."""

    bundle: Bundle
    weights: TrainedWeights
    quantisation: str
    bytes: int
    previous_bytes: int
    comparison: Comparison

    @property
    def summary(self) -> str:
        """Two lines for the terminal."""
        weights, compared = self.weights, self.comparison
        steps = f" and {weights.steps_done} steps" if weights.steps_done else ""
        labelled = (
            f"accuracy {compared.accuracy:.1%}, and {compared.float32_accuracy:.1%} in float32; "
            if compared.accuracy is not None
            else ""
        )
        return (
            f"{self.bundle.folder}: {INFER} {self.bytes / 1e3:,.1f} kB in {self.quantisation} "
            f"(before {self.previous_bytes / 1e3:,.1f} kB), with the weights of {weights.device} "
            f"after {weights.round} rounds{steps}\n"
            f"{labelled}the same answer as float32 to {compared.same_answer:.1%} of "
            f"{compared.examples:,} {'test' if labelled else 'calibration'} examples "
            f"({compared.runtime})"
        )


def requantise(
    folder: Path,
    state: Path,
    *,
    quantisation: str | None = None,
    model: str | None = None,
    calibration: Path | None = None,
    data: Path | None = None,
    progress: Progress = lambda stage: None,
) -> Requantised:
    """Replaces the bundle's inference model; by default quantised as its profile says.

    `model` is FILE:function of a user's branch. `data` is a .npz file or CIFAR-10's folder, to
    test with. The bundle is swapped whole, so a device that has the old one open keeps it.
    """
    progress("read")
    bundle = open_bundle(folder)
    _refuse_other_files(bundle)
    chosen = quantisation or bundle.manifest.profile.inference_quantisation
    weights = read_weights(bundle, state)

    progress("rebuild")
    task, branch = rebuild(bundle, model)
    put_weights(bundle, branch, weights)
    examples = _examples(bundle, task, data)
    ranges = _calibration(branch, task, calibration, examples, data)

    with replacing(folder) as draft:
        progress("quantise")
        for name in (MODEL, SLICE):
            shutil.copyfile(folder / name, draft / name)
        (draft / INFER).write_bytes(convert_inference(branch, chosen, ranges.images))

        progress("compare")
        comparison = _compare(bundle, branch, draft, weights, examples, ranges)

        progress("write")
        entry = file_entry(
            draft / INFER,
            quantisation=chosen,
            weights=weights.source,
            comparison=asdict(comparison),
        )
        files = {**bundle.manifest.files, INFER: entry}
        write_manifest(draft, replace(bundle.manifest, calibration=ranges.source, files=files))
        open_bundle(draft)  # a copy that went wrong must not take the bundle's place
    return Requantised(
        bundle=open_bundle(folder),
        weights=weights,
        quantisation=chosen,
        bytes=entry.bytes,
        previous_bytes=bundle.manifest.files[INFER].bytes,
        comparison=comparison,
    )


def _refuse_other_files(bundle: Bundle) -> None:
    """Raises if the folder holds more than the bundle, which replacing it would remove."""
    others = sorted({path.name for path in bundle.folder.iterdir()} - {MANIFEST, *FILES})
    if others:
        raise ExportError(
            f"{bundle.folder} also holds {', '.join(others)}; "
            "move that elsewhere, so that the bundle can be replaced."
        )


def _examples(bundle: Bundle, task: str | None, data: Path | None) -> Examples | None:
    """The examples to test with: the user's, those of the task, or None."""
    if data is not None and data.is_dir():
        x = check_kind("cifar10", bundle, cifar10.EXAMPLE)
        source, found = str(data), cifar10.read_cifar10(data)
    elif data is not None:
        x = check_kind("npz", bundle)
        source, found = str(data), read_examples(data)
    elif task == "digits":
        x = check_kind("digits", bundle, digits.EXAMPLE)
        source, found = "the package", digits.read_digits()
    else:
        return None
    check_examples(source, found, x)
    return found


def _calibration(
    branch: Branch,
    task: str | None,
    file: Path | None,
    examples: Examples | None,
    data: Path | None,
) -> Calibration:
    """The user's examples, the first of the training data, or what an export would take."""
    if file is None and examples is not None:
        source = f"training examples of {data.name if data else task}"
        return Calibration(source, examples.x_train[:COUNT])
    return calibration_for(branch, task, file)


def _compare(
    bundle: Bundle,
    branch: Branch,
    draft: Path,
    weights: TrainedWeights,
    examples: Examples | None,
    ranges: Calibration,
) -> Comparison:
    """Compares in a fresh process, as on a device; raises if the branch is not the bundle's."""
    runtime = runtime_for(bundle)
    x, y = (examples.x_test, examples.y_test) if examples else (ranges.images, None)
    chosen = np.linspace(0, len(x) - 1, min(len(x), MOST_EXAMPLES)).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        state, asked = Path(folder) / "state.safetensors", Path(folder) / "examples.safetensors"
        save_file(dict(weights.state), state)
        save_file({"x": x[chosen]} | ({} if y is None else {"y": y[chosen]}), asked)
        command = [sys.executable, "-m", "toolkit.trained.comparison", str(draft / MODEL)]
        command += [str(draft / INFER), str(state), str(asked), "--runtime", runtime]
        failure = f"the quantised branch does not run in {runtime}"
        report = report_of(command, failure=failure, error=ExportError)
    few = x[chosen][:PARITY_EXAMPLES].astype(np.float32) * np.float32(branch.input_scale)
    wanted = np.asarray(branch.model(few)).reshape(len(few), -1)
    found = np.asarray(report.pop("answers"), np.float32)
    # Equal shapes do not mean equal branches: strides and activations have no weights.
    if not np.allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max()):
        raise ModelError(
            f"the branch {branch.name!r} is not the one of {bundle.folder}: "
            "with the same weights it answers otherwise."
        )
    return Comparison(runtime=runtime, examples=len(chosen), **report)
