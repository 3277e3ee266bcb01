"""Delays the restart of a service; the delay grows with the number of failures in a row.

    python -m broker.backoff wait FILE     before it starts (ExecStartPre=)
    python -m broker.backoff ended FILE    after it has ended (ExecStopPost=)

systemd passes in SERVICE_RESULT how the service ended, also after a kill. FILE holds the number of
failures, and its modification time is the last start: a failure after a long good run is counted
as the first one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 300.0
GOOD_RUN_SECONDS = 600.0


def seconds_to_wait(failures: int) -> float:
    """Returns 5, 10, 20, … s after the first, second, third, … failure, at most 5 minutes."""
    if failures < 1:
        return 0.0
    return float(min(FIRST_SECONDS * 2.0 ** min(failures - 1, 30), LONGEST_SECONDS))


def count_end(file: Path, *, failed: bool, now: float) -> int:
    """Writes and returns the number of failures in a row, this end of the service included."""
    failures = 0
    if failed:
        started = file.stat().st_mtime if file.exists() else now
        failures = 1 if now - started > GOOD_RUN_SECONDS else failures_in(file) + 1
    file.write_text(f"{failures}\n", encoding="ascii")
    return failures


def failures_in(file: Path) -> int:
    """Returns the number of failures in a row that the file holds."""
    try:
        return max(0, int(file.read_text(encoding="ascii")))
    except (FileNotFoundError, ValueError):  # never started, or damaged by a power cut
        return 0


def main(argv: list[str] | None = None) -> None:
    match sys.argv[1:] if argv is None else argv:
        case ["wait", name]:
            file = Path(name)
            failures = failures_in(file)
            if seconds := seconds_to_wait(failures):
                print(f"waiting {seconds:g} s after {failures} failures in a row", file=sys.stderr)
                time.sleep(seconds)
            file.write_text(f"{failures}\n", encoding="ascii")
        case ["ended", name]:
            failed = os.environ.get("SERVICE_RESULT", "success") != "success"
            count_end(Path(name), failed=failed, now=time.time())
        case _:
            sys.stderr.write("usage: python -m broker.backoff (wait | ended) FILE\n")
            sys.exit(2)


if __name__ == "__main__":
    main()
