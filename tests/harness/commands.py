"""Commands that end by themselves, each in a process of its own or many in one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass

PATIENCE = 60.0  # seconds until a command is given up
_REPEATER = """
import contextlib, importlib, io, json, sys
main = importlib.import_module(f"{sys.argv[1]}.__main__").main
for line in sys.stdin:
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(json.loads(line))
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
_used: dict[str, subprocess.Popen[str]] = {}  # processes by module


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


def run(module: str, *arguments: object) -> Ended:
    """Runs `python -m module`."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return Ended(ran.returncode, ran.stdout, ran.stderr)


def run_in_a_used_process(module: str, *arguments: object) -> Ended:
    """Runs the module's `main` where other command lines ran before: starting takes longest.

    For commands that are refused, and so leave nothing behind in their process.
    """
    if module not in _used:
        command = [sys.executable, "-c", _REPEATER, module]
        pipe = subprocess.PIPE
        _used[module] = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    process = _used[module]
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
    process.stdin.flush()
    giving_up = threading.Timer(PATIENCE, process.kill)
    giving_up.start()
    answer = process.stdout.readline()
    giving_up.cancel()
    assert answer, f"{module} {arguments} has ended its process"
    return Ended(*json.loads(answer))


def end_used_processes() -> None:
    for process in _used.values():
        process.communicate(timeout=PATIENCE)
    _used.clear()
