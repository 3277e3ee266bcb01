"""A device that has trained, for all tests of what can be made of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from firmware_sim.bundle.reader import Bundle


@pytest.fixture(scope="session")
def trained(digits_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a device that trained two rounds of digits. To be read only."""
    state = tmp_path_factory.mktemp("trained") / "state"
    command = [sys.executable, "-m", "firmware_sim.device", "--isolated", "--id", "pi-7"]
    command += ["--task", "digits", "--rounds", "2", "--steps", "60", "--state", str(state)]
    subprocess.run([*command, "--bundle", digits_bundle.folder], check=True, capture_output=True)
    return state
