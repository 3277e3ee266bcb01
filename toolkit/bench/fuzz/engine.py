"""`toolkit bench fuzz`: runs targets under atheris, and says what was executed and what failed.

A failure is an exception that no input may cause (which includes a party that ends, or a device
that adopts something malformed), a hang, or memory that grows. After a failure the target goes on
with the rest of its time, under another seed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from toolkit.bench.fuzz.changes import LARGEST
from toolkit.bench.fuzz.target import Target
from toolkit.bench.simulated_fleet import memory_of
from toolkit.errors import ToolkitError

MOST_GROWTH = 10 * 10**6  # bytes that a process may grow by after its warm-up
HANG_SECONDS = 20
MOST_FAILURES = 5  # of one target
_WARM_UP = 0.25  # part of the time: caches fill, modules are imported, inputs are collected
_MEMORY_LIMIT_MIB = 2048
_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 60.0
_SEED = "seed-"
_SMALL = 2_000  # bytes of an input that is worth keeping
_NEW_INPUTS = 8  # about as many are kept of one run
_MEMORY = Path("/dev/shm")  # state files are synced after each write, which a disk makes slow
_STATUS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """What went wrong, and the input that does it again."""

    what: str
    reproducer: str


@dataclass
class Ran:
    """What a run of one target has done."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    edges: int = 0  # of the instrumented code that were reached
    corpus: int = 0  # inputs that each reached something new
    growth_bytes: int = 0  # from the end of the warm-up to the highest
    failures: list[Failure] = field(default_factory=list)


def run_bench(
    targets: Sequence[Target],
    *,
    seconds: float,
    seed: int,
    corpus: Path,
    failures: Path,
    progress: Progress,
    grow: bool = False,
) -> dict[str, Any]:
    """Fuzzes the targets one after the other, each for its share of the time.

    `grow` adds a few small inputs to the corpus that reached something new.
    """
    if importlib.util.find_spec("atheris") is None:
        raise ToolkitError("atheris is not installed, which guides the fuzzer.")
    shares = sum(target.share for target in targets)
    ran = []
    for target in targets:
        progress(target.name)
        own = seconds * target.share / shares
        ran.append(_run(target, own, seed, corpus / target.name, failures, grow=grow))
    return {"seconds": seconds, "seed": seed, "targets": [asdict(one) for one in ran]}


def tables(report: dict[str, Any]) -> Iterable[Table | str]:
    """Yields what a person reads of a report."""
    table = Table("target", "seconds", "executions", "edges", "corpus", "growth (MB)", "failures")
    for ran in report["targets"]:
        numbers = (f"{ran['seconds']:.0f}", ran["executions"], ran["edges"], ran["corpus"])
        growth = f"{ran['growth_bytes'] / 1e6:.1f}"
        table.add_row(ran["target"], *map(str, numbers), growth, str(len(ran["failures"])))
    yield table
    for ran in report["targets"]:
        for failure in ran["failures"]:
            yield f"{ran['target']}: {failure['what']}\n  {failure['reproducer']}"


def reproduce(targets: Sequence[Target], file: Path) -> None:
    """Runs one input of one target; whatever it raises is the failure."""
    if len(targets) != 1:
        raise ToolkitError("--reproduce needs one --target, whose input the file is.")
    (target,) = targets
    with tempfile.TemporaryDirectory() as folder:
        session = target.open(Path(folder))
        session.run(file.read_bytes())
        session.close()


def _run(
    target: Target, seconds: float, seed: int, corpus: Path, failures: Path, *, grow: bool
) -> Ran:
    ran = Ran(target.name)
    failures.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder)
        for number, data in enumerate(target.seeds()):
            (found / f"{_SEED}{number}").write_bytes(data)
        while (left := seconds - (time.monotonic() - begin)) > 1 or not ran.executions:
            number = len(ran.failures)
            inputs = (found, *([corpus] if corpus.is_dir() else []))
            _run_once(target, max(1.0, left), seed + number, inputs, failures, ran)
            if len(ran.failures) in (number, MOST_FAILURES):
                break
        ran.seconds = time.monotonic() - begin
        if grow:
            _grow(found, corpus)
    return ran


def _run_once(
    target: Target, seconds: float, seed: int, inputs: Sequence[Path], failures: Path, ran: Ran
) -> None:
    reproducer = failures / f"{target.name}-{seed}"
    said = reproducer.with_name(f"{reproducer.name}.log")
    options = [
        *(f"-max_total_time={max(1, round(seconds))}", f"-seed={seed + 1}"),
        *(f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={_MEMORY_LIMIT_MIB}"),
        *(f"-max_len={LARGEST}", f"-artifact_prefix={reproducer}-"),
    ]
    with _process(target, reproducer, [*options, *map(str, inputs)], said) as process:
        growth = _watch(process, said, seconds)
    text = said.read_text(encoding="utf-8", errors="replace")
    found = [tuple(map(int, match.groups())) for match in _STATUS.finditer(text)]
    if found:
        ran.executions += found[-1][0]
        ran.edges = max(ran.edges, found[-1][1])
        ran.corpus = max(ran.corpus, found[-1][3])
    ran.growth_bytes = max(ran.growth_bytes, growth)
    if process.returncode != 0:
        ran.failures.append(Failure(_what_failed(text), _written(reproducer)))
    elif growth >= MOST_GROWTH:
        ran.failures.append(Failure(f"memory grew by {growth / 1e6:.1f} MB.", ""))
    else:
        said.unlink()


def _grow(found: Path, corpus: Path) -> None:
    """Keeps a few of the inputs that reached something new: small ones, of many sizes."""
    corpus.mkdir(parents=True, exist_ok=True)
    new = [path for path in found.iterdir() if not path.name.startswith(_SEED)]
    small = sorted((path.stat().st_size, path) for path in new if path.stat().st_size <= _SMALL)
    for _, path in small[:: max(1, len(small) // _NEW_INPUTS)]:
        shutil.copy(path, corpus)


@contextlib.contextmanager
def _process(
    target: Target, reproducer: Path, options: Sequence[str], said: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the process of a target, which has ended when the block ends."""
    in_memory = _MEMORY if _MEMORY.is_dir() else None
    command = [sys.executable, "-m", "toolkit.bench.fuzz.process", target.name]
    with tempfile.TemporaryDirectory(dir=in_memory) as state, said.open("wb") as log:
        process = subprocess.Popen(
            [*command, state, str(reproducer), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _watch(process: subprocess.Popen[bytes], said: Path, seconds: float) -> int:
    """Returns how much the process grew after its warm-up; ends one that does not end."""
    begin = None  # of the first changed input
    settled, most = 0, 0
    until = time.monotonic() + seconds + HANG_SECONDS + _GRACE_SECONDS
    while process.poll() is None and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        if begin is None:
            begin = time.monotonic() if b"INITED" in said.read_bytes() else None
        elif found := memory_of(process.pid):
            most = max(most, found[0])
            if time.monotonic() - begin < _WARM_UP * seconds:
                settled = most
    return max(0, most - settled) if settled else 0


def _what_failed(said: str) -> str:
    """Returns the line that tells most of what a failed process said."""
    for pattern in (r"^an input failed: (.+)", r"ERROR: libFuzzer: (.+)"):
        if found := re.search(pattern, said, re.MULTILINE):
            return found[1][:300]
    return (said.strip().splitlines() or ["the process ended without a word."])[-1][:300]


def _written(reproducer: Path) -> str:
    """Returns the file that does it again: ours, or the one that libFuzzer wrote."""
    if reproducer.exists():
        return str(reproducer)
    others = sorted(reproducer.parent.glob(f"{reproducer.name}-*"))  # as after a hang
    return str(others[-1]) if others else ""
