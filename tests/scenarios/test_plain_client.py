"""A device that was written from docs/protocol.md alone, in a fleet with one of ours.

`examples/plain_client/device.py` and a normal device learn digits with an aggregator that signs,
over mosquitto, all of them processes. The plain one comes first, finds no θ_shared on the broker,
and asks for it; it is killed when its first update is on its disk, and started again. Expected: it
counts once in every round, and both end with the same θ_shared.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import load_file

from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.messages import DeviceState, Shared, Update, Verdict
from broker.protocol.parts import split
from broker.protocol.topics import Topics
from broker.protocol.wire import below, decode
from broker.transport.mqtt import MqttTransport
from firmware_sim.bundle.reader import Bundle
from firmware_sim.training.checkpoint import Checkpoints
from tests.harness.metrics import read_metrics
from tests.harness.programs import Program, Programs
from tests.harness.waiting import PATIENCE, wait_until
from tests.harness.watcher import Watcher

pytestmark = pytest.mark.xdist_group("fleet")
ROOT = Path(__file__).parents[2]
ROUNDS = 5


@pytest.fixture(scope="module")
def softmax_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of the example, seed 0. To be read only."""
    import keras

    from examples.plain_client.branch import branch
    from tests.harness.quick_bundles import quick_bundle

    keras.utils.set_random_seed(0)
    return quick_bundle(branch(), "weak", tmp_path_factory.mktemp("softmax") / "weak", batch=32)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """The aggregator's key, and its public half as a device has it."""
    private, public = tmp_path / "signing.key", tmp_path / "aggregator.pub"
    key = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private.touch(mode=0o600)
    private.write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
    public.write_text(key.public_key().public_bytes_raw().hex() + "\n", encoding="ascii")
    return {"private": private, "public": public}


def test_the_plain_device_learns_with_one_of_ours(
    softmax_bundle: Bundle,
    keys: dict[str, Path],
    programs: Programs,
    mosquitto: Mosquitto,
    watcher: Watcher,
    topics: Topics,
    tmp_path: Path,
) -> None:
    aggregator = programs.aggregator(
        *("--slice", softmax_bundle.slice, "--signing-key", keys["private"]),
        *("--quorum", "2", "--rounds", str(ROUNDS)),
    )
    watcher.wait_for(Shared, topics.shared)
    _clear_retained(mosquitto, topics.shared)

    def start() -> Program:
        data = ("--data", ROOT / "firmware_sim" / "data" / "digits.npz", "--share", "0.5:1")
        own = ("--id", "plain", "--bundle", softmax_bundle.folder, "--resend-seconds", "2")
        key = ("--aggregator-key", keys["public"])
        return programs.start("plain", "examples.plain_client.device", (*own, *data, *key))

    first = start()
    first.wait_for("trained", round=0)
    first.kill()
    asked = [state.asks for state in watcher.heard(DeviceState, topics.state("plain"))]
    kept = decode((tmp_path / "plain" / "plain.safetensors").read_bytes(), limit=2**20)
    since = len(watcher.packets)
    plain = start()
    nonce = kept.fields["nonce"]
    # From before the kill, kept by the broker meanwhile, or about the bytes that were sent again.
    verdict = watcher.wait_for(Verdict, topics.verdict("plain"), lambda v: v.nonce == nonce)
    restarted = len(watcher.packets)
    normal = programs.device("normal", softmax_bundle, "--share", "0:0.5", "--steps", "30")
    assert [p.exit_code() for p in (normal, plain, aggregator)] == [0, 0, 0]

    assert True in asked
    assert verdict.accepted
    assert plain.history("restored")[0]["round"] == 0
    assert not [e for p in (first, plain) for e in p.history("ignored")]
    sent = watcher.heard(Update, topics.update("plain"))
    assert {update.nonce for update in sent if update.round == 0} == {nonce}
    assert {update.encoding for update in sent} == {"float32"}
    counted = [e["round"] for e in aggregator.history("accepted") if e["device"] == "plain"]
    assert counted == list(range(ROUNDS))
    metrics = _last_metrics(watcher, topics)
    assert metrics["updates_accepted"] == 2 * ROUNDS
    assert metrics["rounds_merged"] == ROUNDS
    assert not [name for name in metrics if name.startswith("refused")]

    watcher.wait_for(DeviceState, topics.state("plain"), lambda s: not s.online, since=restarted)
    final = watcher.wait_for(Shared, topics.shared, lambda shared: shared.last, since=since)
    ours = Checkpoints(tmp_path / "normal", device="normal", bundle=softmax_bundle.model_digest)
    checkpoint = ours.load()
    assert checkpoint is not None
    theirs = load_file(tmp_path / "plain" / "plain.safetensors")
    assert sorted(final.tensors) == ["softmax/bias", "softmax/kernel"]
    for name, value in final.tensors.items():
        np.testing.assert_array_equal(theirs[name], value)
        np.testing.assert_array_equal(below("model/", checkpoint.learner)[name], value)


def test_what_the_aggregator_did_not_sign_is_ignored(
    softmax_bundle: Bundle, keys: dict[str, Path], programs: Programs, topics: Topics
) -> None:
    programs.aggregator("--slice", softmax_bundle.slice)  # without a key
    data = ("--data", ROOT / "firmware_sim" / "data" / "digits.npz")
    own = ("--id", "plain", "--bundle", softmax_bundle.folder, *data)
    key = ("--aggregator-key", keys["public"])
    plain = programs.start("plain", "examples.plain_client.device", (*own, *key))
    plain.wait_for("ignored", topic=topics.aggregator_state)
    plain.wait_for("ignored", topic=topics.shared)
    assert plain.running
    assert not plain.history("trained")


def test_a_message_in_parts_is_put_together() -> None:
    """In any order and twice, with those of an older message that the broker still has between."""
    device: Any = importlib.import_module("examples.plain_client.device")
    old, new = (bytes([number]) * 9000 for number in (1, 2))
    older, newer = list(split(old, 4096)), list(split(new, 4096))
    assert (len(older), len(newer)) == (3, 3)
    arriving = [older[0], newer[2], newer[1], older[2], newer[0], newer[1]]
    state = SimpleNamespace(parts={})
    found = []
    for packet in arriving:
        fields, tensors = device.decode(packet)
        found.append(device.Device.assemble(state, "shared", fields, tensors["part"]))
    assert [whole for whole in found if whole] == [new, new]
    damaged = dict(device.decode(newer[0])[0], count=1)
    assert device.Device.assemble(state, "other", damaged, np.zeros(3, np.uint8)) == b""


def _clear_retained(broker: Mosquitto, topic: str) -> None:
    """As if the broker delivered no retained message, which some do not under a wildcard."""
    transport = MqttTransport(broker.address, client_id="eraser")
    transport.publish(topic, b"", retain=True)
    assert transport.flush(PATIENCE)
    transport.close()


def _last_metrics(watcher: Watcher, topics: Topics) -> dict[str, float]:
    """The aggregator's counters when the last round is in them."""

    def find() -> dict[str, float] | None:
        found = [p.payload for p in watcher.packets if p.topic == topics.aggregator_metrics]
        newest = read_metrics(found[-1]) if found else {}
        return newest if newest.get("rounds_merged") == ROUNDS else None

    return wait_until(find, "the counters of the last round")
