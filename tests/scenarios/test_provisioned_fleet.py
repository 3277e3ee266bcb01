"""A fleet as it is deployed: TLS, passwords and access rules from `toolkit provision`.

A real mosquitto runs what was provisioned for two devices. The aggregator and both devices are
started by nothing but the run.sh in their folders, learn digits for three rounds, and end with the
same θ_shared. A stranger with credentials of another fleet gets one sentence and changes nothing.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.wire import below
from firmware_sim.bundle.reader import Bundle
from firmware_sim.training.checkpoint import Checkpoints
from toolkit.provisioning.fleet import Provisioned, provision

pytestmark = pytest.mark.xdist_group("fleet")
PATIENCE = 60.0
PROFILES = {"pi-1": "weak", "pi-2": "powerful"}


def start(folder: Path, port: int, *arguments: str | Path) -> subprocess.Popen[str]:
    """What an operator types, with the port of this test."""
    text = (folder / "run.sh").read_text(encoding="utf-8")
    (folder / "run.sh").write_text(re.sub(r":\d+\"", f':{port}"', text), encoding="utf-8")
    return subprocess.Popen(
        ["sh", folder / "run.sh", *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_provisioned_fleet_learns(
    bundles: dict[str, Bundle],
    provisioned_mosquitto: Callable[[Path], Mosquitto],
    tmp_path: Path,
) -> None:
    made = provision("farm", list(PROFILES), tmp_path / "farm")
    foreign = provision("farm", ["pi-1"], tmp_path / "foreign")
    slices = [part for b in bundles.values() for part in ("--slice", b.slice)]
    with provisioned_mosquitto(made.broker) as mosquitto:
        programs = {
            "aggregator": start(
                made.credentials("aggregator"), mosquitto.port, *slices,
                "--state", tmp_path / "aggregator", "--quorum", "2", "--rounds", "3",
            )
        }  # fmt: skip
        for device, profile in PROFILES.items():
            programs[device] = start(
                made.credentials(device), mosquitto.port, "--bundle", bundles[profile].folder,
                "--task", "digits", "--steps", "10", "--state", tmp_path / device,
            )  # fmt: skip
        said = {name: program.communicate(timeout=PATIENCE) for name, program in programs.items()}
        stranger = start(
            foreign.credentials("pi-1"), mosquitto.port, "--bundle", bundles["weak"].folder,
            "--task", "digits", "--state", tmp_path / "stranger",
        )  # fmt: skip
        _, refusal = stranger.communicate(timeout=PATIENCE)
    for name, program in programs.items():
        assert program.returncode == 0, said[name]
    first, second = (theta(tmp_path / d, d, bundles[p]) for d, p in PROFILES.items())
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    assert all(json.loads(said[device][0])["accuracy"] > 0.15 for device in PROFILES)
    assert stranger.returncode == 1
    assert refusal.splitlines()[-1].startswith("error: ")
    assert "certificate" in refusal.splitlines()[-1]
    for text in (*said["aggregator"], *said["pi-1"], refusal):
        assert secrets(made).isdisjoint(text.split())


def theta(state: Path, device: str, bundle: Bundle) -> dict[str, Any]:
    """θ_shared in a device's checkpoint."""
    digest = bundle.model_digest
    checkpoint = Checkpoints(state, device=device, bundle=digest).load()
    assert checkpoint is not None
    shared = {tensor.name for tensor in bundle.manifest.shared.tensors}
    return {n: v for n, v in below("model/", checkpoint.learner).items() if n in shared}


def secrets(made: Provisioned) -> set[str]:
    users = ("aggregator", *PROFILES)
    return {(made.credentials(u) / "password").read_text(encoding="utf-8").strip() for u in users}
