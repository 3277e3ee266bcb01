"""Durable files: a crash or a power cut leaves either the old content or the new one."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from broker.errors import WireError
from broker.protocol.slice import canonical_json
from broker.protocol.wire import Array, Envelope, decode, dense, memory, serialised

_LIMIT = 2**40  # bytes; these files were written by this program
_CHECKSUM = "crc32"


def write_file(path: Path, *parts: bytes | memoryview) -> None:
    """Replaces `path`; when this returns, the new bytes survive a power cut."""
    replace_file(path, *parts)
    sync_path(path.parent)


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Replaces `path` by a whole file; the old one may come back until the folder is synced."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("wb") as file:
        for part in parts:
            file.write(part)
        sync_file(file)
    draft.replace(path)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it; when this returns, they survive a power cut."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_path(folder.parent)


def sync_file(file: BinaryIO) -> None:
    """Waits until everything that was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Waits until a closed file is on the disk, or the names that a folder holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def claim(folder: Path) -> BinaryIO | None:
    """Locks a folder until the lock is closed or this process ends.

    Returns None if another process holds the lock.
    """
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def is_claimed(folder: Path) -> bool:
    """Whether a process holds the lock of a folder; nothing is written to find out."""
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def write_sealed(
    path: Path, kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Array]
) -> None:
    """Replaces `path` by a message that holds its own checksum, because memory cards decay.

    Arrays are written from where they are: the memory of a device may not hold a second copy.
    """
    stored = {name: dense(array) for name, array in tensors.items()}
    sealed = {**fields, _CHECKSUM: _checksum(fields, stored)}
    write_file(path, *serialised(kind, sealed, stored))


def read_sealed(path: Path, kind: str) -> Envelope:
    """Returns what `write_sealed` wrote; raises `WireError` if any bit of it has changed."""
    envelope = decode(path.read_bytes(), limit=_LIMIT)
    fields = dict(envelope.fields)
    found = fields.pop(_CHECKSUM, None)
    if envelope.kind != kind:
        raise WireError(f"it holds a {envelope.kind[:40]!r}, not a {kind!r}.")
    if found != _checksum(fields, envelope.tensors):
        raise WireError("it is damaged, for its checksum differs.")
    return Envelope(kind, fields, envelope.tensors)


def _checksum(fields: Mapping[str, Any], tensors: Mapping[str, Array]) -> int:
    """Returns the CRC-32 of the fields, and of name, type, shape and values of every tensor."""
    found = zlib.crc32(canonical_json(fields).encode())
    for name, array in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        found = zlib.crc32(memory(array), found)
    return found
