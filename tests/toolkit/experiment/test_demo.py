"""`toolkit demo`: the study in a few seconds, and what Ctrl-C leaves behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.experiment.running.results import read_results, results_of
from toolkit.experiment.supervised.cell import SupervisedCell

pytestmark = pytest.mark.xdist_group("demo")
PATIENCE = 180.0  # seconds until a test gives up


def demo(out: Path, *options: str) -> subprocess.Popen[str]:
    program = str(Path(sys.executable).with_name("toolkit"))
    command = [program, "demo", "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(of: int) -> list[int]:
    """Processes that were started by a process, or by those that it started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == of and fields[0] != "Z":
            found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


def wait_for_the_end(pids: list[int]) -> None:
    """Fails unless all end; Python's own tracker of resources ends a moment after its parent."""
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process is left behind"
        time.sleep(0.05)


def test_a_short_demo(tmp_path: Path) -> None:
    """The table, the figure and the results agree."""
    out = tmp_path / "demo"
    ran = demo(out, "--rounds", "2", "--steps", "2", "--seeds", "1")
    said, errors = ran.communicate(timeout=PATIENCE)
    assert ran.returncode == 0, errors
    results = results_of(read_results(out / "study"), SupervisedCell)
    assert len(results) == 4 * 3  # weak and powerful alone, alike, unlike; fractions
    rows = [line.strip("│").split("│") for line in said.splitlines() if "%  " in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [row[:2] for row in cells[:2]] == [["weak", "5 %"], ["weak", "20 %"]]
    (final,) = (
        100 * result.finals["weak"].scores["test_accuracy"]
        for result in results
        if result.cell.setting == "heterogeneous" and result.cell.weak_fraction == 0.05
    )
    assert cells[0][-1] == f"{final:.1f}"
    assert (out / "supervised.png").read_bytes().startswith(b"\x89PNG")
    assert said.splitlines()[-1] == f"the picture is in {out / 'supervised.png'}"


def test_ctrl_c_stops_all_children_and_says_what_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    ran = demo(out, "--rounds", "100000")
    deadline = time.monotonic() + PATIENCE
    while not any(b"point" in f.read_bytes() for f in (out / "study").glob("cells/*")):
        assert time.monotonic() < deadline and ran.poll() is None
        time.sleep(0.05)
    workers = children(ran.pid)
    assert len(workers) >= 2
    ran.send_signal(signal.SIGINT)
    _, errors = ran.communicate(timeout=PATIENCE)
    assert ran.returncode == 130
    assert errors == f"interrupted; all processes are stopped; {out} keeps what they had\n"
    wait_for_the_end(workers)
