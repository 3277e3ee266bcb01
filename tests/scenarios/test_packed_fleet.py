"""A device that has nothing but a pack: it joins a fleet over TLS, and keeps what is installed.

A real mosquitto runs what was provisioned. The device is started from its pack as its systemd unit
would, tells a real notification socket that it is ready and at work, learns, and is stopped. Then
it is given a tampered and an older pack: it refuses each, says so, and goes on with the installed
one, from its checkpoint. It ends with the aggregator's θ_shared.
"""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.aggregator.storage.store import SNAPSHOT
from broker.brokers.mosquitto_process import Mosquitto
from broker.durable import read_sealed
from broker.protocol.wire import below
from firmware_sim.bundle.reader import Bundle
from firmware_sim.training.checkpoint import Checkpoints
from tests.harness.waiting import wait_until
from toolkit.fleet.processes import Child, stopping
from toolkit.provisioning.fleet import provision
from toolkit.provisioning.pack import pack

pytestmark = pytest.mark.xdist_group("fleet")
ROUNDS = 30


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The end of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def test_a_device_runs_from_its_pack(
    bundles: dict[str, Bundle],
    provisioned_mosquitto: Callable[[Path], Mosquitto],
    manager: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    bundle = bundles["weak"]
    farm, state, given = tmp_path / "farm", tmp_path / "state", tmp_path / "given.pack"
    made = provision("farm", ["pi-1"], farm, host_names=["127.0.0.1"])
    own, aggregators = made.credentials("pi-1"), made.credentials("aggregator")
    children: list[Child] = []

    def start(module: str, *arguments: str | Path) -> Child:
        log = tmp_path / f"{len(children)}.jsonl"
        children.append(Child(module, module, list(map(str, arguments)), log))
        return children[-1]

    def packed(version: int) -> bytes:
        arguments = ["--task", "digits", "--steps", "10"]
        pack(
            bundle.folder, farm, "pi-1",
            fleet="farm", out=given, version=version, arguments=arguments,
        )  # fmt: skip
        return given.read_bytes()

    def run_device(content: bytes, wanted: str) -> dict[str, Any]:
        """Started with that pack, and stopped when it has said that word, or all is over."""
        given.write_bytes(content)
        options = ("--pack", given, "--trust", own / "trust.key", "--state", state)
        device = start("firmware_sim.device", *options)
        said: dict[str, Any] = {}

        def done() -> bool:
            running = device.running
            said.update({event["event"]: event for event in device.events()})
            return wanted in said or not running

        wait_until(done, f"{wanted} of the device")
        device.check()
        device.stop()
        return said

    with provisioned_mosquitto(made.broker) as mosquitto, stopping(children):
        address = provision("farm", [], farm, port=mosquitto.port).fleet.url
        older, good = packed(1), packed(2)
        tampered = bytearray(packed(3))
        tampered[tampered.index(bundle.model.read_bytes()) + 1000] ^= 1
        aggregator = start(
            "broker.aggregator", "--fleet", "farm", "--broker", address,
            "--user", "aggregator", "--password-file", aggregators / "password",
            "--ca-file", aggregators / "ca.pem", "--slice", bundle.slice,
            "--signing-key", aggregators / "signing.key", "--members", aggregators / "members",
            "--state", tmp_path / "aggregator", "--rounds", str(ROUNDS),
        )  # fmt: skip
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000")

        said = run_device(good, "trained")
        assert said["pack"]["version"] == 2
        assert "pack_refused" not in said
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"WATCHDOG=1"
        for wrong, wanted, why in (
            (bytes(tampered), "trained", "was changed after it was signed."),
            (older, "ended", "an older one is never taken."),
        ):
            said = run_device(wrong, wanted)
            assert said["pack_refused"]["text"].endswith(why)
            assert said["pack_refused"]["stays"] == 2 == said["pack"]["version"]
            assert "resumed" in said, "its checkpoint is found again"
        assert said["finished"]["round"] == ROUNDS
        assert said["finished"]["accuracy"] > 0.15
        wait_until(lambda: not aggregator.running, "the aggregator's end")
        aggregator.check()

    (folder,) = state.glob("model-*")
    digest = bundle.model_digest
    checkpoint = Checkpoints(folder, device="pi-1", bundle=digest).load()
    assert checkpoint is not None
    values = below("model/", checkpoint.learner)
    merged = read_sealed(tmp_path / "aggregator" / SNAPSHOT, "snapshot").tensors
    for tensor in bundle.manifest.shared.tensors:
        np.testing.assert_array_equal(values[tensor.name], merged[f"shared/{tensor.name}"])
    secret = (own / "password").read_text(encoding="utf-8").strip()
    for log in tmp_path.glob("*.jsonl"):
        assert secret not in log.read_text(encoding="utf-8")
