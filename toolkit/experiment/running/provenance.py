"""The provenance of results: the commit and the versions that produced them."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("stemshare", "tensorflow", "keras", "numpy", "ai-edge-litert")


@lru_cache(maxsize=1)
def provenance() -> dict[str, object]:
    """Returns the commit (None outside a git repository) and the versions of packages."""
    return {"commit": commit(Path(__file__).parent), "versions": _versions()}


def commit(folder: Path) -> str | None:
    """Returns the commit, followed by `-dirty` if tracked files have uncommitted changes."""
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
