"""Structured logs: JSON lines for machines, short sentences on a terminal."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import TextIO

from profiles.text import printable, printable_inside

PROGRESS_SECONDS = 0.1  # at least between two updates of the line of progress


class Log:
    """Writes events with their fields; never payloads, passwords or whole exceptions.

    Control characters in a field are replaced: an event is one line, and controls no terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, as_json: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._as_json = not self._stream.isatty() if as_json is None else as_json
        self._progress = False
        self._next_progress = 0.0

    def event(self, name: str, **fields: object) -> None:
        if self._as_json:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            text = json.dumps(
                {"time": at, "event": name, **printable_inside(fields)}, default=_text
            )
        else:
            said = "  ".join(f"{key}={_short(value)}" for key, value in fields.items())
            text = f"{time.strftime('%H:%M:%S')}  {name:<14}{said}"
        self.end_line()
        print(text, file=self._stream, flush=True)

    def end_line(self) -> None:
        """Clears the line of progress before something else is written."""
        if self._progress:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._progress = False

    def progress(self, text: str) -> None:
        """Shows a line of progress in place of the one before; only on a terminal."""
        if not self._as_json and time.monotonic() >= self._next_progress:
            print(f"\r\x1b[K{text}", end="", file=self._stream, flush=True)
            self._progress = True
            self._next_progress = time.monotonic() + PROGRESS_SECONDS


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value)


def _text(value: object) -> str:
    return printable(str(value))
