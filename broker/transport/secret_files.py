"""Files that hold a secret: a password, a private key, a pack."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def exposure(file: Path) -> str | None:
    """Returns a sentence if users other than its owner can read or change the file, or None.

    What is no ordinary file (a pipe) or cannot be looked at is left to whoever opens it. So is what
    systemd hands over (LoadCredential=): it is in a folder for this process alone, and its mode
    shows the mask of an access list.
    """
    try:
        found = file.stat()
    except OSError:
        return None
    handed_over = os.environ.get("CREDENTIALS_DIRECTORY")
    if not stat.S_ISREG(found.st_mode) or (handed_over and file.parent == Path(handed_over)):
        return None
    if not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return None
    return (
        f"others can read or change {file}, which holds a secret: chmod 600 {file}, "
        "or give --allow-readable-keys."
    )
