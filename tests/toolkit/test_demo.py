"""`toolkit demo`: a whole fleet in a few seconds, and what Ctrl-C leaves behind."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("demo")
PATIENCE = 120.0  # seconds until a test gives up
DEVICES = ("weak-1", "weak-2", "powerful-1")


def demo(out: Path, *options: str) -> subprocess.Popen[str]:
    command = [Path(sys.executable).with_name("toolkit"), "demo", "--out", out, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes(folder: Path) -> list[str]:
    """Command lines of whatever still runs for that demo."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_a_short_demo(tmp_path: Path) -> None:
    """Table, figure and logs agree; everybody evaluates every round; nothing is left running."""
    out = tmp_path / "demo"
    ran = demo(out, "--rounds", "2", "--steps", "3")
    said, errors = ran.communicate(timeout=PATIENCE)
    assert ran.returncode == 0, errors
    rows = {cells[0]: cells[2:] for cells in map(str.split, said.replace("│", " ").splitlines())
            if cells and cells[0] in DEVICES}  # fmt: skip
    for column, mode in enumerate(("isolated", "homogeneous", "heterogeneous"), start=-3):
        for device in DEVICES:
            log = (out / "runs" / mode / f"{device}.jsonl").read_text(encoding="utf-8")
            events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
            scores = [e for e in events if e["event"] == "evaluated"]
            assert [e["round"] for e in scores] == [0, 1, 2]
            assert rows[device][column] == f"{scores[-1]['accuracy']:.1%}"
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert said.splitlines()[-1] == f"the learning curves are in {out / 'demo.png'}"
    assert processes(tmp_path) == []


def test_ctrl_c_stops_all_children_and_says_what_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    running = demo(out, "--rounds", "100000")
    log = out / "runs" / "isolated" / "powerful-1.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not (log.exists() and "trained" in log.read_text(encoding="utf-8")):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    assert len(processes(tmp_path)) >= 1 + len(DEVICES)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    sentence = re.sub(r"\s+", " ", errors).strip()
    assert sentence.endswith(f"interrupted; all processes are stopped; {out} keeps what they had")
    assert processes(tmp_path) == []
    for device in DEVICES:
        assert (out / "runs" / "isolated" / device / "checkpoint.safetensors").exists()
