"""Bundles that are exported once in a run of the tests, by whichever process needs them first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from firmware_sim.bundle.reader import Bundle, open_bundle

DIGITS = ("--task", "digits", "--topology", "cascading")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a folder that `make` has filled; all processes of a run share it, to be read only."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """digits-lightweight for profile weak, seed 0. To be read only."""
    made = made_once(tmp_path_factory, "digits", partial(_export_lightweight, task="digits"))
    return open_bundle(made / "weak")


@pytest.fixture(scope="session")
def atari_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """atari-lightweight for profile weak, seed 0. To be read only."""
    made = made_once(tmp_path_factory, "atari", partial(_export_lightweight, task="atari"))
    return open_bundle(made / "weak")


def _export_lightweight(folder: Path, task: str) -> None:
    import keras

    from profiles import load_profile
    from toolkit import zoo
    from toolkit.export.bundle import export
    from toolkit.export.calibration import calibration_for

    keras.utils.set_random_seed(0)
    branch = zoo.build(task, "lightweight")
    examples = calibration_for(branch, task, None)
    export(branch, load_profile("weak"), folder / "weak", calibration=examples, trained=())


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """digits for both profiles, cascading, as the command exports them. To be read only."""
    folder = made_once(tmp_path_factory, "cascade", _export_cascade)
    return {profile: open_bundle(folder / profile) for profile in ("weak", "powerful")}


def _export_cascade(folder: Path) -> None:
    import keras
    from typer.testing import CliRunner

    from toolkit.commands.cli import app

    for profile in ("weak", "powerful"):
        keras.utils.clear_session()  # layers without a name are counted in a process
        command = ["export", *DIGITS, "--profile", profile, "--out", str(folder / profile)]
        ran = CliRunner().invoke(app, command)
        assert ran.exit_code == 0, ran.output
