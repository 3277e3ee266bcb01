"""A dashboard beside the aggregator, `--dashboard`: a process of its own, which ends with it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator

from broker.child_process import ending_with_parent
from broker.errors import SettingsRefused

STOP_SECONDS = 5.0


@contextlib.contextmanager
def dashboard_beside(args: argparse.Namespace) -> Iterator[None]:
    """Runs `toolkit dashboard` for this fleet while the body runs."""
    if args.user is not None or args.certificate_file is not None:
        raise SettingsRefused(
            "--dashboard cannot use the aggregator's own credentials: start toolkit dashboard by "
            "itself, with those of the observer."
        )
    with running_dashboard(args.fleet, args.broker, args.dashboard):
        yield


@contextlib.contextmanager
def running_dashboard(fleet: str, broker: str, http: str) -> Iterator[None]:
    """Runs `toolkit dashboard` for a fleet while the body runs."""
    if importlib.util.find_spec("nicegui") is None:
        raise SettingsRefused(
            "--dashboard needs the package nicegui: pip install 'stemshare[toolkit,dashboard]'."
        )
    link = ["--fleet", fleet, "--broker", broker, "--http", http]
    command = [sys.executable, "-m", "toolkit", "dashboard", *link]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=ending_with_parent()
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
