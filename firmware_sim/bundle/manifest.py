"""The manifest of a bundle: what it holds, for whom it was made, and what it was measured to take.

This module alone knows the layout of `manifest.json`. `parse` checks a whole file once, so that
nobody has to check a part of it again. Keys that this version does not know are ignored; `tuning`,
`normalisation`, `estimated`, `measured`, `prefix`, `frozen` and the branch's `target` may be
missing, as in bundles of earlier versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from broker.protocol.slice import SharedTensor, Slice
from firmware_sim.bundle.json_object import JsonObject, is_count
from firmware_sim.bundle.target import KINDS, Target
from firmware_sim.errors import BundleError
from firmware_sim.normalisation import Normalisation
from firmware_sim.tensor_spec import TensorSpec
from profiles import Profile, problem_with

FORMAT = 1  # of the bundle; readers refuse any other
Inputs = Mapping[str, TensorSpec]  # of a signature, by name
FEATURES = "_features"  # ends the name of an input that takes features instead of examples


@dataclass(frozen=True)
class BranchInput:
    """One example, as the branch takes it; it is multiplied by `scale` first."""

    shape: tuple[int, ...]
    dtype: str
    scale: float

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} times {self.scale}"


@dataclass(frozen=True)
class BranchFacts:
    """The branch: its size, what it takes and how it learns."""

    name: str
    parameters: int
    shared_parameters: int
    operations: int  # multiplications and additions of one inference
    input: BranchInput
    learning: Mapping[str, Any]  # kind, loss, optimizer and their numbers, for people
    target: Target | None = None  # None: it does not learn from examples

    def to_json(self) -> dict[str, Any]:
        said = {**vars(self), "input": {**vars(self.input), "shape": list(self.input.shape)}}
        if self.target is None:
            return {key: value for key, value in said.items() if key != "target"}
        kind, shape, classes = self.target.kind, list(self.target.shape), self.target.classes
        return said | {"target": {"kind": kind, "shape": shape, "classes": classes}}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the training state; a shared one has a fingerprint.

    What is shared and not trainable is received: the device takes it from its fleet.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    shared: bool
    fingerprint: str = ""


@dataclass(frozen=True)
class Prefix:
    """The frozen layers that the branch begins with, in a file of their own."""

    precision: str  # float32 or int8
    micro_batch_size: int  # examples that it takes at once
    features: tuple[int, ...]  # the shape of what it makes of one example, in float32

    @property
    def row_bytes(self) -> int:
        """Of the features of one example."""
        return 4 * math.prod(self.features)


@dataclass(frozen=True)
class Frozen:
    """The tensors that are constants in the bundle's files, and not part of the state."""

    tensors: Mapping[str, tuple[int, ...]]  # shapes by name
    sha256: str  # of their values


@dataclass(frozen=True)
class Measured:
    """What training took in a process of its own when the bundle was exported."""

    runtime: str
    runtime_version: str
    threads: int
    peak_bytes: int
    start_bytes: int  # of the peak: taken before the model was loaded
    step_seconds: float  # median


@dataclass(frozen=True)
class FileEntry:
    """One file of the bundle."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checked manifest; fields are in the order of the file's keys."""

    fingerprint: str  # of the slice
    versions: Mapping[str, str]  # of the programs that made the bundle
    profile: Profile
    branch: BranchFacts
    batch_size: int  # samples in one step
    micro_batch_size: int  # samples that the model takes at once
    runtime: str  # whose speed the bundle was made for
    tuning: Mapping[str, Any] = field(default_factory=dict)  # source, and the choice of each layer
    calibration: str  # where int8 took its ranges from
    normalisation: Normalisation | None = None  # of every example, before the branch sees it
    tensors: tuple[Tensor, ...]
    signatures: Mapping[str, Inputs]
    measured: Measured | None = None
    estimated: Mapping[str, int] = field(default_factory=dict)  # terms of the estimate, in bytes
    update: str = "all"  # the plan by which tensors train
    prefix: Prefix | None = None
    frozen: Frozen | None = None
    files: Mapping[str, FileEntry]

    @property
    def shared(self) -> Slice:
        """The tensors that a device shares; a device reads no ONNX."""
        return Slice.of(
            SharedTensor(t.name, t.shape, t.dtype, t.fingerprint) for t in self.tensors if t.shared
        )

    @property
    def sent(self) -> Slice:
        """Of the shared tensors those that the device trains, and so sends."""
        trained = {t.name for t in self.tensors if t.trainable}
        return Slice.of(tensor for tensor in self.shared.tensors if tensor.name in trained)

    def to_json(self) -> dict[str, Any]:
        """The content of manifest.json."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "versions": dict(self.versions),
            "profile": asdict(self.profile),
            "branch": self.branch.to_json(),
            "batch_size": self.batch_size,
            "micro_batch_size": self.micro_batch_size,
            "runtime": self.runtime,
            **({"tuning": self.tuning} if self.tuning else {}),
            "calibration": self.calibration,
            **({"normalisation": asdict(self.normalisation)} if self.normalisation else {}),
            "tensors": [_tensor_to_json(tensor) for tensor in self.tensors],
            "signatures": {
                name: {"inputs": {n: [s.dtype.name, list(s.shape)] for n, s in inputs.items()}}
                for name, inputs in self.signatures.items()
            },
            "measured": None if self.measured is None else asdict(self.measured),
            **({"estimated": self.estimated} if self.estimated else {}),
            "update": self.update,
            **({"prefix": _prefix_to_json(self.prefix)} if self.prefix else {}),
            **({"frozen": _frozen_to_json(self.frozen)} if self.frozen else {}),
            "files": {name: asdict(entry) for name, entry in self.files.items()},
        }


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    said = {**vars(tensor), "shape": list(tensor.shape)}
    return said if tensor.shared else {k: v for k, v in said.items() if k != "fingerprint"}


def _prefix_to_json(prefix: Prefix) -> dict[str, Any]:
    return {**vars(prefix), "features": list(prefix.features)}


def _frozen_to_json(frozen: Frozen) -> dict[str, Any]:
    shapes = {name: list(shape) for name, shape in frozen.tensors.items()}
    return {"sha256": frozen.sha256, "tensors": shapes}


def parse(table: Mapping[str, Any], file: Path) -> Manifest:
    """Returns the manifest that `file` holds; raises `BundleError` if a value is not as above."""
    if table.get("format") != FORMAT:
        raise BundleError(
            f"{file} has format {short_repr(table.get('format'))}; this version reads {FORMAT}."
        )
    if not isinstance(table.get("files"), dict):
        raise BundleError(f"{file} does not list the bundle's files.")
    optional = {"tuning", "normalisation", "measured", "estimated", "update", "prefix", "frozen"}
    wanted = {key.name for key in fields(Manifest)} - optional
    if missing := sorted(wanted - table.keys()):
        raise BundleError(f"{file} lacks {', '.join(missing)}.")
    read = JsonObject(file, "", {"tuning": {}, "estimated": {}, "update": "all", **table})
    measured = _measured(read.object("measured")) if table.get("measured") else None
    signatures = {
        name: _inputs(signature.object("inputs"))
        for name, signature in read.object("signatures").items()
    }
    return Manifest(
        fingerprint=read.text("fingerprint"),
        versions={name: read.object("versions").text(name) for name in read.object("versions")},
        profile=_profile(read.object("profile")),
        branch=_branch(read.object("branch"), signatures.get("train", {})),
        batch_size=read.count("batch_size"),
        micro_batch_size=read.count("micro_batch_size"),
        runtime=read.text("runtime"),
        tuning=read.object("tuning").table,
        calibration=read.text("calibration"),
        normalisation=_normalisation(read) if table.get("normalisation") else None,
        tensors=tuple(_tensor(entry) for entry in read.objects("tensors")),
        signatures=signatures,
        measured=measured,
        estimated={name: read.object("estimated").count(name) for name in read.object("estimated")},
        update=read.text("update"),
        prefix=_prefix(read.object("prefix")) if "prefix" in table else None,
        frozen=_frozen(read.object("frozen")) if "frozen" in table else None,
        files={name: _file_entry(file, name, entry) for name, entry in table["files"].items()},
    )


def not_described(path: Path) -> BundleError:
    return BundleError(f"the manifest beside {path} does not describe it.")


def _profile(read: JsonObject) -> Profile:
    names = [key.name for key in fields(Profile) if key.name in read or key.default is MISSING]
    if missing := [name for name in names if name not in read]:
        raise BundleError(
            f"the profile in {read.file} lacks {', '.join(missing)}; export the bundle again."
        )
    values = {name: read.table[name] for name in names if name != "name"}
    for name, value in values.items():
        if problem := problem_with(name, value):
            raise BundleError(f"in the profile in {read.file}, key {name!r} {problem}.")
    return Profile(name=read.text("name"), **values)


def _branch(read: JsonObject, trains_on: Inputs) -> BranchFacts:
    takes = read.object("input")
    scale = takes.number("scale")
    return BranchFacts(
        name=read.text("name"),
        parameters=read.count("parameters"),
        shared_parameters=read.count("shared_parameters"),
        operations=read.count("operations"),
        input=BranchInput(takes.shape("shape"), takes.text("dtype"), scale),
        learning=read.object("learning").table,
        target=(
            _target(read.object("target"), scale)
            if "target" in read
            else _target_of_earlier(trains_on)
        ),
    )


def _target(read: JsonObject, scale: float) -> Target:
    kind = next((kind for kind in KINDS if kind == read.text("kind")), None)
    if kind is None:
        raise BundleError(
            f"{read.file} must have one of {', '.join(KINDS)} as {read.place}kind; "
            "a newer version may know it."
        )
    return Target(kind, read.shape("shape"), read.count("classes"), scale)


def _target_of_earlier(trains_on: Inputs) -> Target | None:
    """Bundles that did not say could be trained if they told classes apart, and only then."""
    y = trains_on.get("y")
    return Target("class") if y is not None and y.of_one == Target("class").y else None


def _normalisation(manifest: JsonObject) -> Normalisation:
    read = manifest.object("normalisation")
    channels = manifest.object("branch").object("input").shape("shape")[-1:]
    mean, deviation = read.numbers("mean"), read.numbers("deviation")
    if (len(mean),) != channels or len(deviation) != len(mean) or min(deviation, default=1) <= 0:
        raise BundleError(
            f"{read.file} must have a mean and a deviation above 0 for each channel as "
            "normalisation."
        )
    return Normalisation(mean, deviation)


def _tensor(read: JsonObject) -> Tensor:
    shared = read.flag("shared")
    return Tensor(
        name=read.text("name"),
        shape=read.shape("shape"),
        dtype=read.text("dtype"),
        trainable=read.flag("trainable"),
        shared=shared,
        fingerprint=read.text("fingerprint") if shared else "",
    )


def _inputs(read: JsonObject) -> Inputs:
    return {name: read.spec(name) for name in read}


def _measured(read: JsonObject) -> Measured:
    return Measured(
        runtime=read.text("runtime"),
        runtime_version=read.text("runtime_version"),
        threads=read.count("threads"),
        peak_bytes=read.count("peak_bytes"),
        start_bytes=read.count("start_bytes"),
        step_seconds=read.number("step_seconds"),
    )


def _prefix(read: JsonObject) -> Prefix:
    return Prefix(
        precision=read.text("precision"),
        micro_batch_size=read.count("micro_batch_size"),
        features=read.shape("features"),
    )


def _frozen(read: JsonObject) -> Frozen:
    tensors = read.object("tensors")
    return Frozen({name: tensors.shape(name) for name in tensors}, read.text("sha256"))


def _file_entry(file: Path, name: str, entry: Any) -> FileEntry:
    if not isinstance(entry, dict) or not is_count(entry.get("bytes")):
        raise not_described(file.parent / name)
    if not isinstance(entry.get("sha256"), str):
        raise not_described(file.parent / name)
    return FileEntry(entry["bytes"], entry["sha256"])
