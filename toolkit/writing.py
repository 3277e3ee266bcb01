"""Puts a finished bundle in its place, all of it or nothing."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from broker.durable import sync_path
from firmware_sim.bundle.reader import MANIFEST
from toolkit.errors import ExportError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Error numbers of a kernel, a C library or a file system without the exchange.
_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"cannot make the folder {folder} ({error.strerror}).") from error


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`, which takes its place if all goes well.

    Until then, and whatever happens, a previous bundle stays as it was.
    """
    place = Path(os.path.realpath(target))  # a link stays, and leads to the new bundle
    if Path.cwd().is_relative_to(place):
        raise ExportError(f"{target} is the current folder or above it; it will not be replaced.")
    if place.exists() and not (place / MANIFEST).is_file() and not _is_empty(place):
        raise ExportError(f"{target} exists and is not a bundle; it will not be replaced.")
    draft: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        draft.chmod(0o755)
        yield draft
        for file in draft.iterdir():
            sync_path(file)
        sync_path(draft)
        _swap(draft, place)
        sync_path(place.parent)
    except OSError as error:
        raise ExportError(
            f"cannot write the bundle to {target} ({error.strerror or error})."
        ) from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def _is_empty(target: Path) -> bool:
    return target.is_dir() and not any(target.iterdir())


def _swap(draft: Path, target: Path) -> None:
    """Exchanges the two in one step, so that at no time there is no bundle."""
    if not target.exists():
        draft.rename(target)
        return
    try:
        _exchange(draft, target)
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
        _rename_twice(draft, target)


def _exchange(one: Path, other: Path) -> None:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _rename_twice(draft: Path, target: Path) -> None:
    """Where there is no exchange: the old bundle stays beside the target until the new is there."""
    old = draft.with_name(f"{draft.name}.old")
    target.rename(old)
    try:
        draft.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
