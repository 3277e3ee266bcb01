"""The wire format: every message is one safetensors file, its meaning in the metadata.

    8 bytes   length of the header, little endian
    header    JSON: {"__metadata__": {"stemshare": META}, NAME: {dtype, shape, data_offsets}, …}
    data      the tensors, without gaps

META is canonical JSON with the message's `kind` and its fields. It is one string, and tensors are
written in one fixed order, so the bytes of a message depend on its contents alone. They are the
bytes that the safetensors library writes. Both directions are done here all the same: the library
copies every tensor into one block before it writes; when it reads, it neither returns metadata
from memory nor checks sizes before it copies. Reading is strict: every size is checked before it
is used, and tensors are views into the received bytes.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.errors import Oversized, WireError

Array = npt.NDArray[Any]

HEADER_LIMIT = 2**20  # bytes; a slice of a thousand tensors needs about 100 kB
META = "stemshare"
_DEPTH = 32  # levels of JSON: far below Python's limit of recursion
_LENGTH = struct.Struct("<Q")
_DTYPES: dict[str, np.dtype[Any]] = {  # in the order in which the library writes tensors
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PLACES = {dtype: place for place, dtype in enumerate(_DTYPES.values())}


@dataclass(frozen=True, eq=False)
class Envelope:
    """A decoded message; its tensors are read-only views into the received bytes."""

    kind: str
    fields: Mapping[str, Any]
    tensors: Mapping[str, Array]


def encode(
    kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Array] | None = None
) -> bytes:
    """Returns the message as one block of bytes."""
    return b"".join(serialised(kind, fields, tensors or {}))


def serialised(
    kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Array]
) -> list[bytes | memoryview]:
    """Returns the message as its header and the memory of each tensor, in the order of writing.

    A dense little-endian array is not copied: its memory is returned as it is.
    """
    meta = json.dumps(
        {"kind": kind, **fields}, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    stored = {name: dense(array) for name, array in tensors.items()}
    if wrong := [name for name, array in stored.items() if array.dtype not in _NAMES]:
        raise ValueError(f"tensor {wrong[0]!r} cannot be sent as {stored[wrong[0]].dtype}.")
    # Numbers of many bytes first, so that all are aligned; then by name.
    ordered = sorted(stored.items(), key=lambda item: (_PLACES[item[1].dtype], item[0]))
    header: dict[str, Any] = {"__metadata__": {META: meta}}
    end = 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        described = {"dtype": _NAMES[array.dtype], "shape": array.shape}
        header[name] = {**described, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH.size)  # the tensors begin at a multiple of 8
    return [_LENGTH.pack(len(text)) + text, *(memory(array) for _, array in ordered)]


def dense(array: Array) -> Array:
    """Returns the array without gaps and in little endian: itself, if it is so already."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def memory(array: Array) -> memoryview:
    """Returns the bytes of a dense array, without copying them."""
    return array.reshape(-1).view(np.uint8).data


def decode(payload: bytes, *, limit: int) -> Envelope:
    """Returns the message in `payload`; raises `WireError` if it is none or above `limit` bytes."""
    if len(payload) > limit:
        raise Oversized(f"the message has {len(payload)} bytes; at most {limit} are taken.")
    header, start = _header(payload)
    meta = _meta(header.pop("__metadata__", None))
    tensors = _tensors(header, payload, start)
    return Envelope(meta.pop("kind"), meta, tensors)


def below(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the tensors whose names start with `prefix`, named without it."""
    return {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}


def _header(payload: bytes) -> tuple[dict[str, Any], int]:
    """Returns the header, and the offset at which the data start."""
    if len(payload) < _LENGTH.size:
        raise WireError("the message is cut off before its header.")
    (length,) = _LENGTH.unpack_from(payload)
    start = _LENGTH.size + length
    if length > HEADER_LIMIT or start > len(payload):
        raise WireError("the message's header is too long, or cut off.")
    return _object(payload[_LENGTH.size : start], "header"), start


def _meta(metadata: Any) -> dict[str, Any]:
    if (
        not isinstance(metadata, dict)
        or metadata.keys() != {META}
        or not isinstance(metadata[META], str)
    ):
        raise WireError(f"the message has no metadata {META!r}.")
    meta = _object(metadata[META], "metadata")
    _check_depth(meta, _DEPTH)
    if not isinstance(meta.get("kind"), str):
        raise WireError("the message does not say its kind.")
    return meta


def _object(text: bytes | str, what: str) -> dict[str, Any]:
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        found = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
        if "\\u" in text:  # raises UnicodeEncodeError for half of a surrogate pair
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise WireError(f"the message's {what} is not valid JSON.") from None
    if not isinstance(found, dict):
        raise WireError(f"the message's {what} is not a JSON object.")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _integer(digits: str) -> int:
    if digits == "-0":
        raise ValueError("to the safetensors library this is a float")
    return int(digits)


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits} is beyond all numbers")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_depth(value: Any, levels: int) -> None:
    if isinstance(value, dict | list):
        if levels == 0:
            raise WireError("the message's metadata is nested too deeply.")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, levels - 1)


def _tensors(header: dict[str, Any], payload: bytes, start: int) -> dict[str, Array]:
    places = sorted((_place(name, entry) for name, entry in header.items()), key=_offsets)
    tensors, position = {}, 0
    for name, dtype, shape, begin, end in places:
        if begin != position or end - begin != math.prod(shape) * dtype.itemsize:
            raise WireError(f"tensor {name[:80]!r} is not where its shape and neighbours put it.")
        position = end
    if start + position != len(payload):
        raise WireError(f"the message has {len(payload) - start} bytes of data, not {position}.")
    for name, dtype, shape, begin, _ in places:
        flat = np.frombuffer(payload, dtype, math.prod(shape), offset=start + begin)
        tensors[name] = flat.reshape(shape)
    return tensors


_Place = tuple[str, np.dtype[Any], tuple[int, ...], int, int]


def _offsets(place: _Place) -> tuple[int, int]:
    return place[3], place[4]


def _place(name: str, entry: Any) -> _Place:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if (
            len(entry) == 3
            and dtype in _DTYPES
            and len(shape) <= 8
            and all(_is_size(n) for n in (*shape, begin, end))
            # An empty tensor has any shape that numpy can count, taking its zeros for ones.
            and math.prod(n or 1 for n in shape) * _DTYPES[dtype].itemsize <= sys.maxsize
        ):
            return name, _DTYPES[dtype], tuple(shape), begin, end
    raise WireError(f"tensor {name[:80]!r} is not described as a tensor.")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48
