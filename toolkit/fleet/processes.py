"""Child processes that log JSON lines; they end with the process that started them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from broker.child_process import ending_with_parent
from toolkit.errors import ToolkitError

STOP_SECONDS = 10.0


class Child:
    """A running module; its log is in a file, which stays after its end."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as errors, log.with_suffix(".out").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the parent, which stops them in order
                preexec_fn=ending_with_parent(),
            )
        self._read = log.open(encoding="utf-8", errors="replace")
        self._rest = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def events(self) -> list[dict[str, Any]]:
        """Returns the events that it has logged since the last call."""
        text = self._rest + self._read.read()
        *lines, self._rest = text.split("\n")
        return [json.loads(line) for line in lines if line.startswith("{")]

    def check(self) -> None:
        """Raises a ToolkitError with the last line of the log if the process has failed."""
        if self._process.poll():
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = lines[-1].removeprefix("error: ") if lines else "nothing"
            raise ToolkitError(f"{self.name} failed; see {self._log}: {last}")

    def stop(self) -> None:
        """Asks the process to end; kills it if it takes too long."""
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._read.close()


@contextlib.contextmanager
def stopping(children: list[Child]) -> Iterator[None]:
    """Stops all children in the list when the body ends, in whatever way."""
    try:
        yield
    finally:
        for child in reversed(children):
            child.stop()
