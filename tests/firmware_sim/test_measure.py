"""What an export measures: the same training, with and without all else that a device does."""

import json
import subprocess
import sys
from typing import Any

import pytest

from firmware_sim.bundle.reader import Bundle
from firmware_sim.training.runtime import installed_runtimes


def report(bundle: Bundle, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "firmware_sim.measure", str(bundle.model), *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("runtime", installed_runtimes())
def test_a_device_trains_the_same_and_takes_more(digits_bundle: Bundle, runtime: str) -> None:
    """It begins from a checkpoint of the untrained model, which must change nothing."""
    options = ("--runtime", runtime, "--steps", "3", "--batch", "32")
    bare, device = report(digits_bundle, *options), report(digits_bundle, *options, "--device")
    assert bare["runtime"] == device["runtime"] == runtime
    assert bare["answer"] == device["answer"]
    assert bare["losses"] == device["losses"]
    assert bare["losses"][-1] < bare["losses"][0]
    assert len(bare["step_seconds"]) == 3
    # The agent's libraries alone are several MiB, and the arenas of its other signatures follow.
    assert device["start_bytes"] > bare["start_bytes"] + 4 * 2**20
    assert device["peak_bytes"] > bare["peak_bytes"] + 4 * 2**20


def test_a_batch_that_cannot_be_divided_is_refused(digits_bundle: Bundle) -> None:
    command = [sys.executable, "-m", "firmware_sim.measure", str(digits_bundle.model)]
    ran = subprocess.run([*command, "--batch", "33"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "a batch of 33 cannot be taken in micro-batches of 32." in ran.stderr
