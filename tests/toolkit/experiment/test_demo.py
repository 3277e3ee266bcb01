"""`toolkit demo`: the study in a few seconds, and what a signal leaves behind."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from toolkit.experiment.running.results import read_results, results_of
from toolkit.experiment.supervised.cell import SupervisedCell

pytestmark = pytest.mark.xdist_group("demo")
PATIENCE = 180.0  # seconds until a test gives up


def demo(out: Path, *options: str, **how: Any) -> subprocess.Popen[str]:
    program = str(Path(sys.executable).with_name("toolkit"))
    command = [program, "demo", "--out", str(out), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **how)


def long_demo(out: Path, **how: Any) -> tuple[subprocess.Popen[str], list[int]]:
    """Returns a demo that has trained a round, with its workers and its mosquitto."""
    running = demo(out, "--rounds", "100000", **how)

    def trained() -> bool:
        assert running.poll() is None, running.communicate()
        return any(b"point" in f.read_bytes() for f in (out / "study").glob("cells/*"))

    wait_until(trained, "a round", PATIENCE)
    started = children(running.pid)
    names = [Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() for pid in started]
    assert names.count("mosquitto") == 1 and len(names) >= 3, names
    return running, started


def children(of: int) -> list[int]:
    """Returns the processes that a process has started, directly or not."""
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
    """Fails unless all of them end, some a moment after the process that started them."""
    folders = [Path(f"/proc/{pid}") for pid in pids]
    wait_until(lambda: not any(f.exists() for f in folders), "the end of all processes", PATIENCE)


def test_a_short_demo(tmp_path: Path) -> None:
    """The table, the figure and the results agree."""
    out = tmp_path / "demo"
    ran = demo(out, "--rounds", "2", "--steps", "2", "--seeds", "1")
    said, errors = ran.communicate(timeout=PATIENCE)
    assert ran.returncode == 0, errors
    results = results_of(read_results(out / "study"), SupervisedCell)
    # Weak, powerful and cascade alone, alike, unlike; fractions.
    assert len(results) == 5 * 3
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_sigterm_stops_all_children_and_says_what_is_kept(
    tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "demo"
    running, started = long_demo(out)
    running.send_signal(number)
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert errors == f"interrupted; all processes are stopped; {out} keeps what they had\n"
    wait_for_the_end(started)


def test_no_process_is_left_when_the_demo_is_killed(tmp_path: Path) -> None:
    """SIGKILL gives no time to stop the workers and the broker; they end by themselves."""
    running, started = long_demo(tmp_path / "demo")
    running.kill()
    running.communicate(timeout=PATIENCE)
    wait_for_the_end(started)


def test_in_the_background_ctrl_c_is_ignored_and_sigterm_is_not(tmp_path: Path) -> None:
    """A shell without job control starts `toolkit demo &` with SIGINT ignored."""

    def ignore_ctrl_c() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    running, started = long_demo(tmp_path / "demo", preexec_fn=ignore_ctrl_c)
    running.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(1.0)
    running.terminate()
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    wait_for_the_end(started)


def test_a_mosquitto_that_does_not_start_is_one_sentence(
    toolkit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "mosquitto"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho Error: no memory\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    said = toolkit("demo", "--out", tmp_path / "demo", "--rounds", "1").refusal
    assert said == "mosquitto did not start and said: Error: no memory."
