"""Files that are either the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from broker.errors import WireError
from broker.protocol.slice import canonical_json
from broker.protocol.wire import Array, Envelope, decode, encode

_LIMIT = 2**40  # bytes; the files are our own
_CHECKSUM = "crc32"
_LENGTH = struct.Struct("<Q")  # of the header, before it


def write_file(path: Path, *parts: bytes | memoryview) -> None:
    """Replaces `path`; when this returns, the new bytes survive a power cut."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def claim(folder: Path) -> BinaryIO | None:
    """The lock of a folder, held until it is closed or we end; None if another process has it."""
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def sync_folder(folder: Path) -> None:
    """Makes names that were added to or removed from a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_sealed(
    path: Path, kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Array]
) -> None:
    """Replaces `path` by a message with its own checksum: memory cards decay silently.

    Arrays go to the file as they lie in memory: a second copy of all may be more than there is.
    """
    # The widest numbers first: then all are aligned in the file.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    dense = {
        name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in ordered
    }
    sealed = {**fields, _CHECKSUM: _checksum(fields, dense)}
    write_file(path, _header(encode(kind, sealed), dense), *map(_memory, dense.values()))


def _header(empty: bytes, tensors: Mapping[str, Array]) -> bytes:
    """What stands before the tensors' bytes, from a message without any; `wire` has the format.

    The safetensors library either makes one block of everything, or replaces the file by itself,
    without waiting for the disk.
    """
    header: dict[str, Any] = json.loads(empty[_LENGTH.size :])
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}",  # as F32, U8
            "shape": array.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)  # so the tensors begin at a multiple of 8
    return _LENGTH.pack(len(text)) + text


def read_sealed(path: Path, kind: str) -> Envelope:
    """What `write_sealed` wrote, or `WireError` if a bit of it has changed."""
    envelope = decode(path.read_bytes(), limit=_LIMIT)
    fields = dict(envelope.fields)
    found = fields.pop(_CHECKSUM, None)
    if envelope.kind != kind:
        raise WireError(f"it holds a {envelope.kind[:40]!r}, not a {kind!r}.")
    if found != _checksum(fields, envelope.tensors):
        raise WireError("it is damaged, for its checksum differs.")
    return Envelope(kind, fields, envelope.tensors)


def _checksum(fields: Mapping[str, Any], tensors: Mapping[str, Array]) -> int:
    """CRC-32 over the fields, and over the name, type, shape and values of every tensor."""
    found = zlib.crc32(canonical_json(fields).encode())
    for name, array in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        found = zlib.crc32(_memory(array), found)
    return found


def _memory(array: Array) -> memoryview:
    """The bytes of a dense array, where they are."""
    return array.reshape(-1).view(np.uint8).data
