"""Fixtures for every room, and what a run of the tests owes to the machine that it runs on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from firmware_sim.bundle.reader import Bundle, open_bundle
from tests.harness.bundles import atari_bundle, digits_bundle
from tests.harness.left_behind import MARK, end_left_behind

__all__ = ["atari_bundle", "digits_bundle"]

# TensorFlow is what many tests compare with. Without oneDNN, which it uses by itself only where the
# processor has AVX-512 or better, it has no gradient of a dilated convolution, and is less exact.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Nothing asserts absolute times: how long it takes to draw or to try an example is the machine's.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_configure() -> None:
    """Marks all processes that are started from here, and gives them the default handler of SIGINT.

    Under `nohup make test &` this process is started with SIGINT ignored, and its children would
    inherit that: no Ctrl-C would ever end them. A handler of Python's own is not inherited. This
    process itself goes on as if the signal were ignored.
    """
    os.environ[MARK] = str(os.getpid())
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kills processes that the tests of a module have started and not ended, and fails then."""
    yield
    if left := end_left_behind(os.getpid()):
        names = "\n".join(map(str, left))
        pytest.fail(f"{request.node.name} has left processes behind, now killed:\n{names}")


@pytest.fixture
def own_bundle(digits_bundle: Bundle, tmp_path: Path) -> Bundle:
    """A copy that a test may damage or replace."""
    return open_bundle(Path(shutil.copytree(digits_bundle.folder, tmp_path / "own" / "weak")))


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """What a refused command says: one sentence on standard error, and nothing else."""
        assert (self.code, self.out) == (1, ""), self
        assert self.err.startswith("error: "), self.err
        assert self.err.endswith("\n"), self.err
        assert len(self.err.splitlines()) == 1, self.err
        return self.err.removeprefix("error: ").strip()


@pytest.fixture
def toolkit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Runs the command in this process; what it prints is read from the file descriptors."""
    from toolkit.commands.cli import main

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["toolkit", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        said = capfd.readouterr()
        code = caught.value.code
        return Ran(code if isinstance(code, int) else 1, said.out, said.err)

    return run


@pytest.fixture
def listing() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder with its bytes; folders end in a slash."""

    def read(folder: Path) -> dict[str, bytes]:
        return {
            f"{path.relative_to(folder)}/" if path.is_dir() else str(path.relative_to(folder)): (
                b"" if path.is_dir() else path.read_bytes()
            )
            for path in sorted(folder.rglob("*"))
            if "__pycache__" not in path.parts
        }

    return read
