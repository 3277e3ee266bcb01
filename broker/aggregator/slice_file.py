"""Reads a slice from shared.onnx, and checks it before anything uses it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from onnx import checker, numpy_helper, shape_inference

from broker.aggregator.roles import read_roles
from broker.errors import SliceError
from broker.merging.merge import MERGES
from broker.protocol.slice import SharedTensor, Slice, Tensors, union

LIMIT = 256 * 2**20  # bytes
# Keys of the model's metadata; no fingerprint depends on them.
MERGE = "merge"  # states the merge which fits
TRAINED = "trained"  # lists the tensors whose values were loaded, not drawn, as JSON
_PLAIN = {
    onnx.AttributeProto.AttributeType.Value(kind)
    for kind in ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS", "TENSOR")
}


@dataclass(frozen=True, eq=False)
class FleetSlices:
    """What the slices of all kinds of devices say together."""

    known: Slice  # their union
    start: Tensors  # a tensor starts from the file that brings it trained, else from the first
    merges: Mapping[Path, str]  # the merge that fits, by the files that state one


def read_slice(source: Path | str | bytes, *, limit: int = LIMIT) -> tuple[Slice, Tensors]:
    """Returns the slice in a file (or in its bytes), and the start values of its tensors."""
    read = _read(source, limit)
    return read.slice, read.values


def read_slices(files: Sequence[Path], *, chosen: Collection[str] = ()) -> FleetSlices:
    """Returns the slices of a fleet; `chosen` tensors will start from other values.

    Raises `SliceError` if two files bring different trained values of another tensor.
    """
    read = {file: _read(file, LIMIT) for file in files}
    start: Tensors = {}
    brought: dict[str, Path] = {}  # trained tensors, and the file that they come from
    for file, one in read.items():
        start = one.values | start
        for name in sorted(one.trained.difference(chosen)):
            if name in brought and not np.array_equal(one.values[name], start[name]):
                raise SliceError(
                    f"{brought[name]} and {file} bring different trained values of tensor "
                    f"{name!r}: choose with --start the bundle whose values shall count."
                )
            start[name] = one.values[name]
            brought.setdefault(name, file)
    merges = {file: one.merge for file, one in read.items() if one.merge is not None}
    return FleetSlices(union(one.slice for one in read.values()), start, merges)


@dataclass(frozen=True, eq=False)
class _Read:
    """What a file holds, all of it checked."""

    slice: Slice
    values: Tensors
    merge: str | None
    trained: frozenset[str]


def _read(source: Path | str | bytes, limit: int) -> _Read:
    where = "the slice" if isinstance(source, bytes) else f"the slice {str(source)!r}"
    model = _parse(_load(source, limit, where), where)
    values = _values(model.graph, where)
    _check(model, where)
    roles = read_roles(model.graph, {name: array.shape for name, array in values.items()})
    tensors = (SharedTensor.of(n, a.shape, "float32", roles[n]) for n, a in values.items())
    return _Read(Slice.of(tensors), values, _merge(model, where), _trained(model, values, where))


def _load(source: Path | str | bytes, limit: int, where: str) -> bytes:
    if isinstance(source, bytes):
        size, data = len(source), source
    else:
        try:
            size, data = Path(source).stat().st_size, b""
            if size <= limit:
                with Path(source).open("rb") as file:
                    data = file.read(limit + 1)  # stat is wrong for a pipe or a growing file
                size = len(data)
        except OSError as error:
            raise SliceError(f"{where} cannot be read: {error.strerror}.") from error
    if size > limit:
        raise SliceError(f"{where} is larger than the limit of {limit} bytes.")
    return data


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise SliceError(f"{where} is not an ONNX file, or it is cut off.") from error
    graph = model.graph
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    tensors = [*graph.initializer, *(attribute.t for attribute in attributes)]
    names = [named.name for named in (*graph.node, *attributes, *tensors)]
    names += [text for n in graph.node for text in (n.op_type, *n.input, *n.output)]
    names += [d.dim_param for x in graph.input for d in x.type.tensor_type.shape.dim]
    names += [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    if any(isinstance(name, bytes) for name in names):  # protobuf returns bytes for invalid UTF-8
        raise SliceError(f"{where} has a name that is not text.")
    for tensor in tensors:
        if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise SliceError(f"{where} keeps tensor {tensor.name!r} in another file.")
    if (
        any(node.domain for node in graph.node)
        or any(a.type not in _PLAIN or a.ref_attr_name for a in attributes)
        or any(tensor.data_type == onnx.TensorProto.STRING for tensor in tensors)
        or graph.sparse_initializer
        or model.functions
    ):
        raise SliceError(f"{where} needs more than ONNX's plain operations on numbers.")
    return model


def _values(graph: onnx.GraphProto, where: str) -> Tensors:
    values: Tensors = {}
    for tensor in graph.initializer:
        what = f"{where} has tensor {tensor.name!r}"
        if tensor.name in values:
            raise SliceError(f"{what} twice.")
        if tensor.data_type != onnx.TensorProto.FLOAT:
            raise SliceError(f"{what}, which is not float32.")
        try:
            array = numpy_helper.to_array(tensor)
        except ValueError as error:
            raise SliceError(f"{what}, whose data do not fill its shape.") from error
        if not np.isfinite(array).all():
            raise SliceError(f"{what}, which is not finite.")
        values[tensor.name] = array
    return values


def _merge(model: onnx.ModelProto, where: str) -> str | None:
    """Returns the merge that fits what the branch learns; slices of earlier versions state none."""
    stated = [entry.value for entry in model.metadata_props if entry.key == MERGE]
    for merge in stated:
        if merge not in MERGES:
            raise SliceError(f"{where} states merge {merge[:20]!r}, none of {', '.join(MERGES)}.")
    return stated[0] if stated else None


def _trained(model: onnx.ModelProto, values: Tensors, where: str) -> frozenset[str]:
    """Returns the tensors with trained values; slices of earlier versions name none."""
    stated = [entry.value for entry in model.metadata_props if entry.key == TRAINED]
    try:
        names = json.loads(stated[0]) if stated else []
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) and n in values for n in names):
        raise SliceError(f"{where} does not list its trained tensors as JSON.")
    return frozenset(names)


def _check(model: onnx.ModelProto, where: str) -> None:
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError, ValueError) as error:
        raise SliceError(f"{where} is not a valid ONNX model.") from error
    if not model.graph.initializer:
        raise SliceError(f"{where} shares no tensor.")
