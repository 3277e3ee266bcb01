"""Where results come from: the commit and the versions that made them."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("stemshare", "tensorflow", "keras", "numpy", "ai-edge-litert")


@lru_cache(maxsize=1)
def origin() -> dict[str, object]:
    """Commit and versions; `commit` is None outside a git repository."""
    return {"commit": commit(Path(__file__).parent), "versions": _versions()}


def commit(folder: Path) -> str | None:
    """With `-dirty` behind it if files that git knows were changed since."""
    commands = ["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "-uno"]
    try:
        found, changed = (
            subprocess.run(c, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
            for c in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found}-dirty" if changed else found


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
