"""The slice: the tensors a device shares, and whether it fits the slices a fleet knows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from onnx import checker, numpy_helper, shape_inference

from broker.roles import digest, read_roles

LIMIT = 256 * 2**20  # bytes

Tensors = dict[str, npt.NDArray[np.float32]]
_PLAIN = {
    onnx.AttributeProto.AttributeType.Value(kind)
    for kind in ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS", "TENSOR")
}


class SliceError(Exception):
    """A file is not a slice, or slices contradict each other; its text is one sentence."""


@dataclass(frozen=True)
class SharedTensor:
    """One tensor of a slice; `role` is canonical JSON, or empty where only its digest is known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    fingerprint: str
    role: str = ""

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], dtype: str, role: str) -> SharedTensor:
        what = {"name": name, "shape": shape, "dtype": dtype, "role": role}
        return cls(name, shape, dtype, digest(what), role)


@dataclass(frozen=True)
class Slice:
    """Shared tensors in the order in which the data meets them."""

    tensors: tuple[SharedTensor, ...]
    fingerprint: str

    @classmethod
    def of(cls, tensors: Iterable[SharedTensor]) -> Slice:
        tensors = tuple(tensors)
        return cls(tensors, digest(sorted(tensor.fingerprint for tensor in tensors)))


def read_slice(source: Path | str | bytes, *, limit: int = LIMIT) -> tuple[Slice, Tensors]:
    """The slice in a file (or in its bytes), and the values that its tensors start from."""
    where = "the slice" if isinstance(source, bytes) else f"the slice {str(source)!r}"
    model = _parse(_load(source, limit, where), where)
    values = _values(model.graph, where)
    _check(model, where)
    roles = read_roles(model.graph, {name: array.shape for name, array in values.items()})
    tensors = (SharedTensor.of(n, a.shape, "float32", roles[n]) for n, a in values.items())
    return Slice.of(tensors), values


def union(slices: Iterable[Slice]) -> Slice:
    """Every tensor that one of the slices shares; they must agree on those they have in common."""
    known = Slice.of(())
    for new in slices:
        names = {tensor.name for tensor in known.tensors}
        common = Slice.of(tensor for tensor in new.tensors if tensor.name in names)
        if difference := first_difference(common, known):
            raise SliceError(f"two slices contradict each other: {difference}")
        known = Slice.of((*known.tensors, *(t for t in new.tensors if t.name not in names)))
    return known


def first_difference(device: Slice, known: Slice) -> str | None:
    """Why the device may not join the fleet that knows `known`, or None if it may."""
    fleet = {tensor.name: tensor for tensor in known.tensors}
    for tensor in device.tensors:
        if tensor.name not in fleet:
            return f"the device shares tensor {tensor.name!r}, which the fleet does not know."
        other = fleet[tensor.name]
        if tensor.fingerprint != other.fingerprint:
            return f"tensor {tensor.name!r} {_difference(tensor, other)}."
    return None


def _difference(mine: SharedTensor, theirs: SharedTensor) -> str:
    for what in ("shape", "dtype"):
        a, b = getattr(mine, what), getattr(theirs, what)
        if a != b:
            return f"has {what} {a} on the device and {b} in the fleet"
    if not (mine.role and theirs.role):
        return "has another role on the device than in the fleet"
    a, b = json.loads(mine.role), json.loads(theirs.role)
    for part, verb in (("uses", "used by"), ("follows", "followed by")):
        ops = [", ".join(o["op"] for o in role[part]) or "nothing" for role in (a, b)]
        if ops[0] != ops[1]:
            return f"is {verb} {ops[0]} on the device and {ops[1]} in the fleet"
        for x, y in zip(a[part], b[part], strict=True):
            for key in sorted({*x["attributes"], *y["attributes"]}):
                values = [o["attributes"].get(key, "unset") for o in (x, y)]
                if values[0] != values[1]:
                    setting = f"{key} {values[0]} on the device and {values[1]} in the fleet"
                    return f"is {verb} {x['op']} with {setting}"
            if x["inputs"] != y["inputs"]:
                return f"is {verb} {x['op']}, which something else feeds than in the fleet"
    return "has another role on the device than in the fleet"


# Reading: nothing is trusted before it is checked.


def _load(source: Path | str | bytes, limit: int, where: str) -> bytes:
    if isinstance(source, bytes):
        size, data = len(source), source
    else:
        try:
            size, data = Path(source).stat().st_size, b""
            if size <= limit:
                with Path(source).open("rb") as file:
                    data = file.read(limit + 1)  # a pipe or a growing file has no honest size
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
    if any(isinstance(name, bytes) for name in names):  # what protobuf makes of broken UTF-8
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


def _check(model: onnx.ModelProto, where: str) -> None:
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError, ValueError) as error:
        raise SliceError(f"{where} is not a valid ONNX model.") from error
    if not model.graph.initializer:
        raise SliceError(f"{where} shares no tensor.")
