"""Puts a finished bundle in its place, all of it or nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from firmware_sim.bundle import MANIFEST
from toolkit.errors import ExportError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`, which takes its place if all goes well.

    Until then, and whatever happens, a previous bundle stays as it was.
    """
    if target.exists() and not (target / MANIFEST).is_file() and not _is_empty(target):
        raise ExportError(f"{target} exists and is not a bundle; it will not be replaced.")
    draft: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        draft.chmod(0o755)
        yield draft
        for file in draft.iterdir():
            _sync(file)
        _sync(draft)
        _swap(draft, target)
        _sync(target.parent)
    except OSError as error:
        raise ExportError(f"cannot write the bundle to {target} ({error.strerror}).") from error
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
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(draft), os.fsencode(target)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _sync(path: Path) -> None:
    """Makes sure that a file or folder has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
