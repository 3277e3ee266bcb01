"""Files that only the owner of their folder can read; each is written completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from broker.durable import sync_file
from broker.transport.secret_files import exposure
from toolkit.errors import ProvisionError


def make_folder(folder: Path) -> None:
    """Creates the folder if it does not exist; only its owner can read it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)


def read(path: Path) -> str | None:
    """Returns the text of a file, or None if the file does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ProvisionError(f"{path} is not text.") from error


def write(path: Path, content: str | bytes) -> None:
    """Replaces the file atomically; its mode is 0600, as mkstemp creates it."""
    data = content.encode() if isinstance(content, str) else content
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchown(descriptor, path.parent.stat().st_uid, -1)  # root may write for mosquitto
            file.write(data)
            sync_file(file)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def check_private(*files: Path, allow: bool) -> None:
    """Raises `ProvisionError` if other users can read a secret, unless that is allowed."""
    for file in files:
        if not allow and (exposed := exposure(file)):
            raise ProvisionError(exposed)


def put(target: Path, files: Mapping[str, bytes]) -> None:
    """Replaces the folder by one with these files; its mode is 0700, as mkdtemp creates it."""
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    old = draft.with_name(f"{draft.name}.old")
    try:
        for name, data in files.items():
            write(draft / name, data)
        if target.exists():
            target.rename(old)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
