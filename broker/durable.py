"""Files that are either the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from broker.slice import canonical
from broker.wire import Array, Envelope, WireError, decode, encode

_LIMIT = 2**40  # bytes; the files are our own
_CHECKSUM = "crc32"


def write_file(path: Path, data: bytes) -> None:
    """Replaces `path`; when this returns, the new bytes survive a power cut."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("wb") as file:
        file.write(data)
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
    """Replaces `path` by a message with its own checksum: memory cards decay silently."""
    sealed = {**fields, _CHECKSUM: _checksum(fields, tensors)}
    write_file(path, encode(kind, sealed, tensors))


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
    found = zlib.crc32(canonical(fields).encode())
    for name, array in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found
