"""The wheel holds every file of the packages, and a device runs from it without TensorFlow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from firmware_sim.bundle.reader import Bundle

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "firmware_sim", "profiles", "toolkit")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing of an earlier build is in it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    command = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(source / "dist"), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = (source / "dist").glob("stemshare-*.whl")
    return built


@pytest.fixture(scope="module")
def device_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel with its device extra and no more."""
    folder = tmp_path_factory.mktemp("device")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [*PIP, "--python", str(python), "install", "--quiet", "--only-binary", ":all:"]
    install += ["--no-compile", "--retries", "1", "--constraint", str(ROOT / "constraints.txt")]
    ran = subprocess.run(
        [*install, f"{wheel}[device]"], capture_output=True, text=True, timeout=600, check=False
    )
    if ran.returncode and not _has_index(folder):
        pytest.skip(f"no package index can be reached: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
    return python


def _has_index(folder: Path) -> bool:
    """Whether pip can get a package that certainly exists."""
    command = [*PIP, "download", "--quiet", "--no-deps", "--no-cache-dir", "--retries", "1"]
    command += ["--dest", str(folder / "probe"), "paho-mqtt"]
    return not subprocess.run(command, capture_output=True, timeout=300, check=False).returncode


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith("stemshare-")}
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    expected = {
        str(path.relative_to(ROOT))
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed


def test_a_device_trains_from_the_wheel_alone(
    device_python: Path, digits_bundle: Bundle, tmp_path: Path
) -> None:
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Made for the other runtime, maybe; the device extra brings one.
    brought = "tflite-runtime" if sys.version_info < (3, 12) else "ai-edge-litert"
    options = ["--bundle", str(digits_bundle.folder), "--task", "digits", "--runtime", brought]
    options += ["--isolated", "--rounds", "3"]
    ran = subprocess.run(
        [device_python, "-m", "firmware_sim.device", *options, "--state", tmp_path / "state"],
        cwd=tmp_path,
        env=outside,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["accuracy"] > 0.3  # a tenth without training
    (packages,) = device_python.parents[1].glob("lib/python*/site-packages")
    installed = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {"stemshare", "numpy", "paho_mqtt", "safetensors"} < installed
    assert len(installed - {"stemshare"}) <= 10
    assert not installed & {"tensorflow", "keras", "onnx", "amqtt", "typer"}
