"""Runs contestants in fresh processes, in turn, so that a noisy machine affects all of them alike.

Ratios are to be taken within a round, and medians over rounds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.fresh_process import report_of

Progress = Callable[[str], None]
BATCH = 32  # examples in the mini-batch of every contestant
_ROOT = Path(__file__).resolve().parents[2]


def run_contest(
    commands: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    threads: int,
    progress: Progress,
    label: str = "",
) -> dict[str, list[dict[str, Any]]]:
    """Returns the reports of every contestant, one for each round."""
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(1, rounds + 1):
        for name, command in commands.items():
            progress(f"{label}{name}, round {number} of {rounds}")
            reports[name].append(run_contestant(command, threads, failure=f"{name} failed"))
    return reports


def run_contestant(command: Sequence[str], threads: int, *, failure: str) -> dict[str, Any]:
    """Runs a command that may use this number of CPU threads; returns the JSON that it prints.

    The command may run in another environment's Python, which finds our packages by PYTHONPATH.
    """
    environment = os.environ | {
        "PYTHONPATH": str(_ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
    }
    return report_of(command, failure=failure, environment=environment)
