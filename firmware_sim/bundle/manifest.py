"""The manifest of a bundle: what it holds, for whom it was made, and what it was measured to take.

This module alone knows the layout of `manifest.json`. `parse` checks a whole file once, so that
nobody has to check a part of it again. Keys that this version does not know are ignored; `tuning`,
`estimated` and `measured` may be missing, as in bundles of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

import numpy as np

from broker.protocol.slice import SharedTensor, Slice
from firmware_sim.errors import BundleError
from firmware_sim.tensor_spec import TensorSpec
from profiles import Profile, problem_with

FORMAT = 1  # of the bundle; readers refuse any other
Inputs = Mapping[str, TensorSpec]  # of a signature, by name


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


@dataclass(frozen=True)
class Tensor:
    """One tensor of the training state; a shared one has a fingerprint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    shared: bool
    fingerprint: str = ""


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
    """One file of the bundle; `requantised` says how `toolkit requantise` made it."""

    bytes: int
    sha256: str
    requantised: Mapping[str, Any] = field(default_factory=dict)


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
    tensors: tuple[Tensor, ...]
    signatures: Mapping[str, Inputs]
    measured: Measured | None = None
    estimated: Mapping[str, int] = field(default_factory=dict)  # terms of the estimate, in bytes
    files: Mapping[str, FileEntry]

    @property
    def shared(self) -> Slice:
        """The tensors that a device shares; a device reads no ONNX."""
        return Slice.of(
            SharedTensor(t.name, t.shape, t.dtype, t.fingerprint) for t in self.tensors if t.shared
        )

    def to_json(self) -> dict[str, Any]:
        """The content of manifest.json."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "versions": dict(self.versions),
            "profile": asdict(self.profile),
            "branch": {
                **vars(self.branch),
                "input": {**vars(self.branch.input), "shape": list(self.branch.input.shape)},
            },
            "batch_size": self.batch_size,
            "micro_batch_size": self.micro_batch_size,
            "runtime": self.runtime,
            **({"tuning": self.tuning} if self.tuning else {}),
            "calibration": self.calibration,
            "tensors": [_tensor_to_json(tensor) for tensor in self.tensors],
            "signatures": {
                name: {"inputs": {n: [s.dtype.name, list(s.shape)] for n, s in inputs.items()}}
                for name, inputs in self.signatures.items()
            },
            "measured": None if self.measured is None else asdict(self.measured),
            **({"estimated": self.estimated} if self.estimated else {}),
            "files": {
                name: {"bytes": entry.bytes, "sha256": entry.sha256, **entry.requantised}
                for name, entry in self.files.items()
            },
        }


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    said = {**vars(tensor), "shape": list(tensor.shape)}
    return said if tensor.shared else {k: v for k, v in said.items() if k != "fingerprint"}


def parse(table: Mapping[str, Any], file: Path) -> Manifest:
    """Returns the manifest that `file` holds; raises `BundleError` if a value is not as above."""
    if table.get("format") != FORMAT:
        raise BundleError(
            f"{file} has format {short_repr(table.get('format'))}; this version reads {FORMAT}."
        )
    if not isinstance(table.get("files"), dict):
        raise BundleError(f"{file} does not list the bundle's files.")
    optional = {"tuning", "measured", "estimated"}
    wanted = {key.name for key in fields(Manifest)} - optional
    if missing := sorted(wanted - table.keys()):
        raise BundleError(f"{file} lacks {', '.join(missing)}.")
    read = _Object(file, "", {"tuning": {}, "estimated": {}, **table})
    measured = _measured(read.object("measured")) if table.get("measured") else None
    return Manifest(
        fingerprint=read.text("fingerprint"),
        versions={name: read.object("versions").text(name) for name in read.object("versions")},
        profile=_profile(read.object("profile")),
        branch=_branch(read.object("branch")),
        batch_size=read.count("batch_size"),
        micro_batch_size=read.count("micro_batch_size"),
        runtime=read.text("runtime"),
        tuning=read.object("tuning").table,
        calibration=read.text("calibration"),
        tensors=tuple(_tensor(entry) for entry in read.objects("tensors")),
        signatures={
            name: _inputs(signature.object("inputs"))
            for name, signature in read.object("signatures").items()
        },
        measured=measured,
        estimated={name: read.object("estimated").count(name) for name in read.object("estimated")},
        files={name: _file_entry(file, name, entry) for name, entry in table["files"].items()},
    )


def not_described(path: Path) -> BundleError:
    return BundleError(f"the manifest beside {path} does not describe it.")


class _Object:
    """A JSON object whose values are taken out one by one, and checked on the way."""

    def __init__(self, file: Path, place: str, table: Mapping[str, Any]) -> None:
        self.file = file
        self.place = place  # of the object in the file, as "branch."
        self.table = table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def items(self) -> Iterator[tuple[str, _Object]]:
        return ((name, self.object(name)) for name in self.table)

    def text(self, key: str) -> str:
        return str(self._take(key, "a text", lambda value: isinstance(value, str)))

    def flag(self, key: str) -> bool:
        return bool(self._take(key, "true or false", lambda value: isinstance(value, bool)))

    def count(self, key: str) -> int:
        return int(self._take(key, "a whole number, 0 or more", _is_count))

    def number(self, key: str) -> float:
        found: float = self._take(key, "a number", lambda value: type(value) in (int, float))
        return found

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._take(key, "a list of whole numbers", _is_shape))

    def object(self, key: str) -> _Object:
        found = self._take(key, "an object", lambda value: isinstance(value, dict))
        return _Object(self.file, f"{self.place}{key}.", found)

    def objects(self, key: str) -> list[_Object]:
        found = self._take(key, "a list of objects", _is_list_of_objects)
        return [
            _Object(self.file, f"{self.place}{key}[{number}].", entry)
            for number, entry in enumerate(found)
        ]

    def spec(self, key: str) -> TensorSpec:
        dtype, shape = self._take(key, "the type and shape of an array", _is_spec)
        return TensorSpec(tuple(shape), np.dtype(dtype))

    def _take(self, key: str, expected: str, is_right: Callable[[Any], bool]) -> Any:
        if key not in self.table:
            raise BundleError(f"{self.file} lacks {self.place}{key}.")
        value = self.table[key]
        if not is_right(value):
            raise BundleError(f"{self.file} must have {expected} as {self.place}{key}.")
        return value


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _is_spec(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 2 and _is_shape(value[1])):
        return False
    try:
        return isinstance(value[0], str) and bool(np.dtype(value[0]).name)
    except TypeError:
        return False


def _profile(read: _Object) -> Profile:
    names = [key.name for key in fields(Profile)]
    if missing := [name for name in names if name not in read]:
        raise BundleError(
            f"the profile in {read.file} lacks {', '.join(missing)}; export the bundle again."
        )
    values = {name: read.table[name] for name in names if name != "name"}
    for name, value in values.items():
        if problem := problem_with(name, value):
            raise BundleError(f"in the profile in {read.file}, key {name!r} {problem}.")
    return Profile(name=read.text("name"), **values)


def _branch(read: _Object) -> BranchFacts:
    takes = read.object("input")
    return BranchFacts(
        name=read.text("name"),
        parameters=read.count("parameters"),
        shared_parameters=read.count("shared_parameters"),
        operations=read.count("operations"),
        input=BranchInput(takes.shape("shape"), takes.text("dtype"), takes.number("scale")),
        learning=read.object("learning").table,
    )


def _tensor(read: _Object) -> Tensor:
    shared = read.flag("shared")
    return Tensor(
        name=read.text("name"),
        shape=read.shape("shape"),
        dtype=read.text("dtype"),
        trainable=read.flag("trainable"),
        shared=shared,
        fingerprint=read.text("fingerprint") if shared else "",
    )


def _inputs(read: _Object) -> Inputs:
    return {name: read.spec(name) for name in read}


def _measured(read: _Object) -> Measured:
    return Measured(
        runtime=read.text("runtime"),
        runtime_version=read.text("runtime_version"),
        threads=read.count("threads"),
        peak_bytes=read.count("peak_bytes"),
        start_bytes=read.count("start_bytes"),
        step_seconds=read.number("step_seconds"),
    )


def _file_entry(file: Path, name: str, entry: Any) -> FileEntry:
    if not isinstance(entry, dict) or not _is_count(entry.get("bytes")):
        raise not_described(file.parent / name)
    if not isinstance(entry.get("sha256"), str):
        raise not_described(file.parent / name)
    more = {key: value for key, value in entry.items() if key not in ("bytes", "sha256")}
    return FileEntry(entry["bytes"], entry["sha256"], more)
