"""Runs a module in a process of its own and reads the JSON that it prints last."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import ToolkitError


def report_of(
    command: Sequence[str],
    *,
    failure: str,
    error: type[ToolkitError] = ToolkitError,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns the report, or {} if the process prints none. Raises `error` if the process fails,
    with one sentence: `failure`, and the last line that it printed."""
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise error(f"{failure}: {last.removeprefix('error: ')}")
    lines = ran.stdout.splitlines()
    report: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return report
