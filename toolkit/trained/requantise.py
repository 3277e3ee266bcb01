"""A new `infer.tflite` from the weights that a device has trained, put in place of the old one.

TensorFlow is imported where it is needed and not above: as a program, this module compares the
quantised model with float32 in the device's runtime alone,

    python -m toolkit.trained.requantise MODEL INFER STATE EXAMPLES --runtime NAME
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from broker.durable import read_sealed
from broker.errors import WireError
from broker.protocol.wire import below
from firmware_sim.bundle.reader import (
    FILES,
    INFER,
    MANIFEST,
    MODEL,
    SLICE,
    Bundle,
    file_digest,
    open_bundle,
)
from firmware_sim.errors import CheckpointError, TaskError
from firmware_sim.tasks import cifar10, digits
from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.labelled import Examples, check_examples, check_kind
from firmware_sim.training.checkpoint import FILE, Checkpoints
from firmware_sim.training.runtime import Array, Model, choose_runtime, installed_runtimes
from toolkit.errors import ExportError, ModelError
from toolkit.fresh_process import report_of
from toolkit.writing import replacing

if TYPE_CHECKING:
    from toolkit.branch.branch import Branch
    from toolkit.export.bundle import Calibration, Progress

STAGES = ("read", "rebuild", "quantise", "compare", "write")
MOST_EXAMPLES = 2000  # one inference each, twice; chosen evenly from more
PARITY_EXAMPLES = 4  # that Keras answers as well


@dataclass(frozen=True, eq=False)
class TrainedWeights:
    """What a device's checkpoint holds of its model, and when that was."""

    device: str
    run: str
    round: int
    steps_done: int  # of that round
    state: Mapping[str, Array]  # all that `set_state` takes, optimiser slots included

    @property
    def source(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "run": self.run,
            "round": self.round,
            "steps_done": self.steps_done,
        }


@dataclass(frozen=True)
class Comparison:
    """The quantised model beside float32 `infer` of the same weights, in one runtime.

    Shares are of the examples; there are accuracies where the examples have labels.
    """

    runtime: str
    examples: int
    same_answer: float  # share with the same largest output
    mean_difference: float  # of one output, absolute
    accuracy: float | None
    float32_accuracy: float | None


@dataclass(frozen=True, eq=False)
class Requantised:
    """The bundle as it is now."""

    bundle: Bundle
    weights: TrainedWeights
    quantisation: str
    bytes: int
    previous_bytes: int
    comparison: Comparison

    @property
    def summary(self) -> str:
        """Two lines for people."""
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
    _refuse_strangers(bundle)
    chosen = quantisation or bundle.manifest["profile"]["inference_quantisation"]
    weights = read_weights(bundle, state)

    progress("rebuild")
    task, branch = rebuild(bundle, model)
    put_weights(bundle, branch, weights)
    examples = _examples(bundle, task, data)
    ranges = _calibration(branch, task, calibration, examples, data)

    with replacing(folder) as draft:
        progress("quantise")
        from toolkit.export.infer import convert_inference

        for name in (MODEL, SLICE):
            shutil.copyfile(folder / name, draft / name)
        (draft / INFER).write_bytes(convert_inference(branch, chosen, ranges.images))

        progress("compare")
        comparison = _compare(bundle, branch, draft, weights, examples, ranges)

        progress("write")
        entry: dict[str, Any] = {
            "bytes": (draft / INFER).stat().st_size,
            "sha256": file_digest(draft / INFER),
            "quantisation": chosen,
            "weights": weights.source,
            "comparison": asdict(comparison),
        }
        files = {**bundle.manifest["files"], INFER: entry}
        manifest = {**bundle.manifest, "calibration": ranges.source, "files": files}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        open_bundle(draft)  # a copy that went wrong must not take the bundle's place
    return Requantised(
        bundle=open_bundle(folder),
        weights=weights,
        quantisation=chosen,
        bytes=entry["bytes"],
        previous_bytes=bundle.manifest["files"][INFER]["bytes"],
        comparison=comparison,
    )


def _refuse_strangers(bundle: Bundle) -> None:
    """Swapping folders would remove what is no part of the bundle, such as a device's state."""
    strangers = sorted({path.name for path in bundle.folder.iterdir()} - {MANIFEST, *FILES})
    if strangers:
        raise ExportError(
            f"{bundle.folder} also holds {', '.join(strangers)}; "
            "move that elsewhere, so that the bundle can be replaced."
        )


def read_weights(bundle: Bundle, state: Path) -> TrainedWeights:
    """From the checkpoint of a device that trains this bundle's model."""
    path = state / FILE
    if not path.is_file():
        raise ExportError(f"there is no checkpoint in {state}; a device's --state folder has one.")
    device = _owner(path)
    model = bundle.manifest["files"][MODEL]["sha256"]
    try:
        found = Checkpoints(state, device=device, bundle=model).load()
    except CheckpointError as error:
        raise ExportError(str(error)) from None
    if found is None:
        raise ExportError(f"the checkpoint in {state} has gone; try again.")
    tensors = below("model/", found.learner)
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise ExportError(f"{path} holds a tensor {name!r} that is not finite.")
    return TrainedWeights(device, found.run, found.round, found.steps_done, tensors)


def _owner(path: Path) -> str:
    """Whose checkpoint it is; loading says what is wrong with one that cannot be read."""
    try:
        return str(read_sealed(path, "checkpoint").fields.get("device"))
    except (OSError, WireError):
        return ""


def rebuild(bundle: Bundle, model: str | None) -> tuple[str | None, Branch]:
    """The zoo's task and branch by the name in the manifest, or the user's branch."""
    from toolkit import zoo
    from toolkit.branch.user_model import load_branch

    if model is not None:
        return None, load_branch(model)
    name = bundle.manifest["branch"]["name"]
    for task, kind, topology in zoo.names():
        if name.startswith(f"{task}-{kind}"):
            branch = zoo.build(task, kind, topology)
            if branch.name == name:
                return task, branch
    raise ModelError(
        f"the manifest of {bundle.folder} cannot tell how its branch {name!r} is built, which is "
        "not the zoo's; say --model FILE:function, as when it was exported."
    )


def put_weights(bundle: Bundle, branch: Branch, weights: TrainedWeights) -> None:
    """Sets every float tensor of the branch by name, if it is the bundle's branch."""
    from toolkit.autodiff.naming import named_variables

    about = bundle.manifest["branch"]
    takes = {
        "shape": list(branch.input_shape),
        "dtype": branch.input_dtype,
        "scale": branch.input_scale,
    }
    wanted = {name: tuple(value.shape) for name, value in branch.weights().items()}
    stored = {t["name"]: tuple(t["shape"]) for t in bundle.manifest["tensors"]}
    trainable = {t["name"] for t in bundle.manifest["tensors"] if t["trainable"]}
    for name in sorted(wanted.keys() | trainable):
        here, there = wanted.get(name), stored.get(name)
        if here != there:
            raise ModelError(
                f"the branch {branch.name!r} is not the one of {bundle.folder}: tensor {name!r} "
                f"is {_shape(here)} here and {_shape(there)} in the bundle."
            )
    if takes != about["input"]:
        raise ModelError(
            f"the branch {branch.name!r} is not the one of {bundle.folder}: "
            f"it takes {takes}, and the bundle {about['input']}."
        )
    variables = named_variables(branch.model)
    for name in wanted:
        variables[name].assign(weights.state[name])


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def _examples(bundle: Bundle, task: str | None, data: Path | None) -> Examples | None:
    """What there is to test with: the user's data, or those that come with the task."""
    try:
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
    except TaskError as error:
        raise ExportError(str(error)) from None
    return found


def _calibration(
    branch: Branch,
    task: str | None,
    file: Path | None,
    examples: Examples | None,
    data: Path | None,
) -> Calibration:
    """The user's examples, the first of the training data, or what an export would take."""
    from toolkit.export.bundle import Calibration
    from toolkit.export.calibration import COUNT, calibration_for

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
    """In a fresh process, as a device would run it; the branch must also be the bundle's."""
    made_for = bundle.manifest["profile"]["runtime"]
    runtime = made_for if made_for in installed_runtimes() else choose_runtime()
    x, y = (examples.x_test, examples.y_test) if examples else (ranges.images, None)
    chosen = np.linspace(0, len(x) - 1, min(len(x), MOST_EXAMPLES)).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        state, asked = Path(folder) / "state.safetensors", Path(folder) / "examples.safetensors"
        save_file(dict(weights.state), state)
        save_file({"x": x[chosen]} | ({} if y is None else {"y": y[chosen]}), asked)
        command = [sys.executable, "-m", "toolkit.trained.requantise", str(draft / MODEL)]
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


# --- in the fresh process ------------------------------------------------------------------------


def compare(model: Path, infer: Path, state: Path, examples: Path, runtime: str) -> dict[str, Any]:
    """Asks both models for each example; `answers` are the first float32 ones."""
    float32, quantised = Model(model, runtime=runtime), Model(infer, runtime=runtime)
    float32.call("set_state", **load_file(state))
    found = load_file(examples)
    wanted, got = (
        np.stack([m.call("infer", x=x[None])["output"].ravel() for x in found["x"]])
        for m in (float32, quantised)
    )
    labels = found.get("y")
    return {
        "answers": wanted[:PARITY_EXAMPLES].tolist(),
        "same_answer": float(np.mean(wanted.argmax(1) == got.argmax(1))),
        "mean_difference": float(np.mean(np.abs(wanted - got))),
        "accuracy": _accuracy(got, labels),
        "float32_accuracy": _accuracy(wanted, labels),
    }


def _accuracy(answers: Array, labels: Array | None) -> float | None:
    return None if labels is None else float(np.mean(answers.argmax(1) == labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "infer", "state", "examples"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--runtime", required=True)
    args = parser.parse_args()
    print(json.dumps(compare(args.model, args.infer, args.state, args.examples, args.runtime)))


if __name__ == "__main__":
    main()
