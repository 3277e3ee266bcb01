"""The trained model out: a device's or a fleet's weights as Keras, TFLite, ONNX or slice files.

Every file is compared with what the device answers, in its own runtime, before any is put in
place.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save, save_file

from broker.durable import write_file
from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.normalisation import Normalisation
from firmware_sim.tasks.labelled import Examples
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import runtime_for
from toolkit.errors import ExportError
from toolkit.fresh_process import report_of
from toolkit.trained.given_data import read_given
from toolkit.trained.weights import TrainedWeights, read_trained, trained_branch

if TYPE_CHECKING:
    from toolkit.branch.branch import Branch
    from toolkit.export.bundle import Calibration

STAGES = ("read", "rebuild", "write", "compare")
MOST_EXAMPLES = 2000  # one inference each; chosen evenly from more
ONNX_EXAMPLES = 2  # computed by ONNX's reference implementation, which is slow
BATCH = 64  # examples that Keras computes at once
TFLITE = "out.tflite"


@dataclass(frozen=True)
class Wanted:
    """The files to write; None: not this one."""

    keras: Path | None = None
    tflite: Path | None = None
    onnx: Path | None = None
    slice: Path | None = None

    def files(self) -> dict[str, Path]:
        """Returns them by kind."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: path for name, path in named if path is not None}


SUFFIXES = {"keras": ".keras", "tflite": ".tflite", "onnx": ".onnx", "slice": ".safetensors"}


@dataclass(frozen=True)
class Written:
    """One file, and how its answers differ from the device's."""

    path: Path
    bytes: int
    largest_difference: float | None = None  # of one output, absolute
    same_answer: float | None = None  # the part of the examples with the same largest output
    accuracy: float | None = None


@dataclass(frozen=True)
class CheckedOut:
    """What was written, from whose weights, and what it was compared on."""

    weights: str
    normalisation: Normalisation | None  # that the files expect of their inputs
    runtime: str
    examples: int
    examples_from: str
    quantisation: str
    ranges: str | None  # where int8 took them from
    device_accuracy: float | None
    files: Mapping[str, Written]

    def to_json(self) -> dict[str, Any]:
        files = {kind: {**vars(file), "path": str(file.path)} for kind, file in self.files.items()}
        found = self.normalisation
        normalised = found and {"mean": found.mean, "deviation": found.deviation}
        return {**vars(self), "normalisation": normalised, "files": files}

    def lines(self) -> Iterator[str]:
        """Yields a line for each file."""
        yield f"the weights of {self.weights}"
        for kind, file in self.files.items():
            said = [f"{file.path}: {file.bytes / 1e3:,.1f} kB"]
            if kind == "tflite":
                ranges = f", ranges from {self.ranges}" if self.ranges else ""
                said[0] += f" in {self.quantisation}{ranges}"
            if file.largest_difference is not None:
                said.append(f"differs from the device by at most {file.largest_difference:.1e}")
            if file.same_answer is not None:
                said.append(
                    f"the same answer to {file.same_answer:.1%} of {self.examples:,} "
                    f"{self.examples_from} ({self.runtime})"
                )
            if file.accuracy is not None:
                said.append(
                    f"accuracy {file.accuracy:.1%}, on the device {self.device_accuracy:.1%}"
                )
            yield "; ".join(said)
        if self.normalisation is not None:
            yield f"they take inputs as the device normalises them: {self.normalisation}"


def checkout(
    folder: Path,
    wanted: Wanted,
    *,
    state: Path | None = None,
    shared: Path | None = None,
    model: str | None = None,
    quantisation: str = "float32",
    calibration: Path | None = None,
    data: Path | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> CheckedOut:
    """Writes the files; `model` is FILE.py:function for a branch with code of its own.

    `data` is a .npz file or CIFAR-10's folder, to compare on.
    """
    progress("read")
    check_targets(wanted, force=force)
    if state is None and shared is None:
        raise ExportError(
            "whose weights? Give --state of a device, --shared with the fleet's snapshot, or both."
        )
    bundle = open_bundle(folder)
    weights = read_trained(bundle, state, shared)
    examples = None if data is None else read_given(bundle, data, weights.normalisation)

    progress("rebuild")
    branch = trained_branch(bundle, model, weights)
    ranges = (
        _ranges(weights, branch, calibration, examples, data) if quantisation == "int8" else None
    )
    source, x, y = _compared_on(branch, examples)

    progress("write")
    made = _make_files(bundle, branch, wanted, quantisation, ranges)

    progress("compare")
    runtime = runtime_for(bundle)
    device, others = _answers(bundle, branch, weights, made, x, runtime)
    _check_branch(bundle, branch, device, x)
    chooses = _chooses(bundle)
    files = {}
    for kind, path in wanted.files().items():
        found = others.get(kind)
        files[kind] = (
            Written(path, len(made[kind]))
            if found is None
            else _compare(path, len(made[kind]), device, found, y, chooses=chooses)
        )
    check_targets(wanted, force=force)
    for kind, path in wanted.files().items():
        _write(path, made[kind])
    return CheckedOut(
        weights=weights.origin,
        normalisation=weights.normalisation,
        runtime=runtime,
        examples=len(x),
        examples_from=source,
        quantisation=quantisation,
        ranges=ranges.source if ranges else None,
        device_accuracy=_accuracy(device, y),
        files=files,
    )


def check_targets(wanted: Wanted, *, force: bool) -> None:
    """Raises `ExportError` unless there is something to write, and nothing to be overwritten."""
    files = wanted.files()
    if not files:
        raise ExportError("nothing to write: give --keras, --tflite, --onnx or --slice.")
    for kind, path in files.items():
        if path.suffix != SUFFIXES[kind]:
            raise ExportError(f"the file of --{kind} must end in {SUFFIXES[kind]}, unlike {path}.")
        if not path.parent.is_dir():
            raise ExportError(f"there is no folder {path.parent}.")
        if path.exists() and not force:
            raise ExportError(f"{path} exists; --force replaces it.")


def _ranges(
    weights: TrainedWeights,
    branch: Branch,
    file: Path | None,
    examples: Examples | None,
    data: Path | None,
) -> Calibration:
    """The user's examples, the first of the training data, or what an export would take."""
    from toolkit.export.bundle import Calibration
    from toolkit.export.calibration import COUNT, calibration_for

    if file is None and examples is not None and data is not None:
        return Calibration(f"training examples of {data.name}", examples.x_train[:COUNT])
    found = calibration_for(branch, branch.name.partition("-")[0], file)
    if file is not None and (normalisation := weights.normalisation) is not None:
        return replace(found, images=normalisation.apply(found.images))
    fits = found.images.shape[1:] == branch.input_shape
    return found if fits else calibration_for(branch, None, None)


def _compared_on(branch: Branch, examples: Examples | None) -> tuple[str, Array, Array | None]:
    """The user's test examples, or synthetic ones without labels."""
    from toolkit.export.infer import synthetic_examples

    if examples is None:
        return "synthetic examples", synthetic_examples(branch), None
    count = len(examples.x_test)
    chosen = np.linspace(0, count - 1, min(count, MOST_EXAMPLES)).astype(int)
    return "test examples", examples.x_test[chosen], examples.y_test[chosen]


def _make_files(
    bundle: Bundle,
    branch: Branch,
    wanted: Wanted,
    quantisation: str,
    ranges: Calibration | None,
) -> dict[str, bytes]:
    """The bytes of the wanted files, by kind."""
    from toolkit.export.infer import convert_inference
    from toolkit.export.onnx.network import build_network

    made = {}
    if wanted.keras is not None:
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder) / "model.keras"
            branch.model.save(draft)
            made["keras"] = draft.read_bytes()
    if wanted.tflite is not None:
        images = np.empty(0) if ranges is None else ranges.images
        made["tflite"] = convert_inference(branch, quantisation, images)
    if wanted.onnx is not None:
        made["onnx"] = build_network(branch).SerializeToString(deterministic=True)
    if wanted.slice is not None:
        values = branch.weights()
        made["slice"] = save({t.name: values[t.name] for t in bundle.manifest.shared.tensors})
    return made


def _answers(
    bundle: Bundle,
    branch: Branch,
    weights: TrainedWeights,
    made: Mapping[str, bytes],
    x: Array,
    runtime: str,
) -> tuple[Array, dict[str, Array]]:
    """What the device answers, and each of the files that answer, by kind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out, asked, state = (folder / f"{n}.safetensors" for n in ("out", "asked", "state"))
        save_file({"x": x}, asked)
        save_file(dict(weights.state), state)
        command = [sys.executable, "-m", "toolkit.trained.device_answers"]
        command += ["--runtime", runtime, str(out), str(asked), str(state), str(bundle.model)]
        if "tflite" in made:
            (folder / TFLITE).write_bytes(made["tflite"])
            command.append(str(folder / TFLITE))
        report_of(command, failure=f"the model does not run in {runtime}", error=ExportError)
        found = load_file(out)
    others = {}
    if "keras" in made:
        others["keras"] = keras_answers(branch, x)
    if "tflite" in made:
        others["tflite"] = found[TFLITE]
    if "onnx" in made:
        others["onnx"] = _onnx_answers(made["onnx"], x[:ONNX_EXAMPLES])
    return found["device"], others


def keras_answers(branch: Branch, x: Array) -> Array:
    """What the Keras model answers to what a device is fed."""
    scaled = x.astype(np.float32) * np.float32(branch.input_scale)
    return np.concatenate(
        [np.asarray(branch.model(scaled[i : i + BATCH])) for i in range(0, len(x), BATCH)]
    )


def _onnx_answers(data: bytes, x: Array) -> Array:
    import onnx
    from onnx.reference import ReferenceEvaluator

    network = ReferenceEvaluator(onnx.load_from_string(data))
    return np.concatenate([network.run(None, {"x": one[None]})[0] for one in x])


def _check_branch(bundle: Bundle, branch: Branch, device: Array, x: Array) -> None:
    """Raises if the branch is not the bundle's: strides and activations have no weights."""
    few, prefix = keras_answers(branch, x[:4]), bundle.manifest.prefix
    if prefix is not None and prefix.precision != "float32":
        return  # the device itself rounds
    if not np.allclose(device[:4], few, rtol=1e-3, atol=1e-4 * np.abs(few).max()):
        raise ExportError(
            f"the branch {branch.name!r} is not the one of {bundle.folder}: "
            "with the same weights it answers otherwise."
        )


def _chooses(bundle: Bundle) -> bool:
    """Whether the largest output is the answer: a class, or an action."""
    target = bundle.manifest.branch.target
    return target is None or target.is_class


def _compare(
    path: Path, size: int, device: Array, found: Array, y: Array | None, *, chooses: bool
) -> Written:
    wanted = device[: len(found)]
    whole = chooses and len(found) == len(device)
    same = float(np.mean(wanted.argmax(-1) == found.argmax(-1))) if whole else None
    return Written(
        path=path,
        bytes=size,
        largest_difference=float(np.abs(wanted - found).max()),
        same_answer=same,
        accuracy=_accuracy(found, y) if whole else None,
    )


def _accuracy(answers: Array, labels: Array | None) -> float | None:
    if labels is None or labels.dtype != np.int32:
        return None
    counts = labels >= 0  # a position labelled -1 does not
    return float(np.mean((answers.argmax(-1) == labels)[counts]))


def _write(path: Path, data: bytes) -> None:
    try:
        write_file(path, data)
    except OSError as error:
        raise ExportError(f"cannot write {path} ({error.strerror}).") from error
