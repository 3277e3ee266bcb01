"""Starts the command `toolkit`, or says in one sentence which extra is not installed."""

from __future__ import annotations

import sys

from toolkit.errors import MissingExtra
from toolkit.lean_keras import keep_keras_lean


def main() -> None:
    """Runs the command line; nothing of the toolkit is loaded before it is known to be there."""
    keep_keras_lean()
    try:
        from toolkit.commands.cli import main as run

        run()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "toolkit", "firmware_sim", "broker", "profiles"):
            raise
        missing = MissingExtra(package)
        sys.stderr.write(f"{missing.report}\n")
        sys.exit(missing.exit_code)


if __name__ == "__main__":
    main()
