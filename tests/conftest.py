"""Fixtures for every room: an exported bundle, made once, and the command `toolkit`."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.metrics import PREFIX
from firmware_sim.bundle.reader import Bundle, open_bundle

# TensorFlow is the reference of many tests. Only with oneDNN, which it switches on by itself on
# some processors alone, can it differentiate dilated convolutions on a CPU.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """digits-lightweight for profile weak, seed 0. To be read only."""
    import keras

    from profiles import load_profile
    from toolkit import zoo
    from toolkit.export.bundle import export
    from toolkit.export.calibration import calibration_for

    keras.utils.set_random_seed(0)
    branch = zoo.build("digits", "lightweight")
    examples = calibration_for(branch, "digits", None)
    target = tmp_path_factory.mktemp("bundles") / "weak"
    return export(branch, load_profile("weak"), target, calibration=examples)


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
def read_metrics() -> Callable[[bytes], dict[str, float]]:
    """Reads metrics as Prometheus does: values by name, without the prefix of the project."""

    def read(payload: bytes) -> dict[str, float]:
        pairs = (
            line.removeprefix(PREFIX).rpartition(" ") for line in payload.decode().splitlines()
        )
        return {name: float(value) for name, _, value in pairs}

    return read


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
