"""A fleet for which nothing was installed.

The aggregator brings its own broker, and two real devices of unequal profiles learn digits over
it. The devices are started first and wait. When the last round is merged the aggregator stays
until both devices have said goodbye: they have got the last θ_shared, and only then is its broker
gone.
"""

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.brokers.mosquitto_process import free_port
from broker.protocol.wire import below
from broker.transport.address import Address
from firmware_sim.bundle.reader import Bundle
from firmware_sim.training.checkpoint import Checkpoints
from tests.harness.programs import Programs

pytestmark = pytest.mark.xdist_group("fleet")
ROUNDS = 2


@pytest.fixture
def mosquitto() -> Any:
    """There is none; this is only where the embedded broker will listen."""

    class Nobody:
        address = Address("127.0.0.1", free_port(), tls=False)

    return Nobody()


def test_devices_have_the_last_shared_before_the_broker_goes(
    programs: Programs, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    options = ("--steps", "5", "--resend-seconds", "1")
    devices = {
        name: programs.device(name, bundles[name], *options, "--share", share)
        for name, share in (("weak", "0:0.2"), ("powerful", "0.2:1"))
    }
    for device in devices.values():
        device.wait_for("disconnected")  # nothing listens yet
    slices = [part for b in bundles.values() for part in ("--slice", b.slice)]
    quorum = ("--quorum", "2", "--rounds", str(ROUNDS))
    aggregator = programs.aggregator("--embedded", *slices, *quorum)

    codes = {name: device.exit_code() for name, device in devices.items()}
    assert codes == {"weak": 0, "powerful": 0}
    assert aggregator.exit_code() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", programs.broker.port), 1.0)

    assert [e["round"] for e in aggregator.history("merged")] == [1, 2]
    assert aggregator.history("finished")[0]["round"] == ROUNDS
    left = [e["device"] for e in aggregator.history("left")]
    assert sorted(left) == ["powerful", "weak"]
    kept = {}
    for name, device in devices.items():
        assert [e["round"] for e in device.history("finished")] == [ROUNDS]
        scores = json.loads(device.log.with_suffix(".out").read_text())
        assert {"loss", "accuracy", "mean_recall"} <= scores.keys()
        digest = bundles[name].model_digest
        checkpoint = Checkpoints(tmp_path / name, device=name, bundle=digest).load()
        assert checkpoint is not None
        assert checkpoint.round == ROUNDS
        kept[name] = below("model/", checkpoint.learner)
    shared = [t.name for t in bundles["weak"].manifest.shared.tensors]
    assert len(shared) >= 2
    for name in shared:
        np.testing.assert_array_equal(kept["weak"][name], kept["powerful"][name])
