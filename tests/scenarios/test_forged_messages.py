"""Somebody who can publish on every topic of a fleet writes as its aggregator.

A real mosquitto without access rules, an aggregator and two devices that learn digits for twelve
rounds. After the sixth a forger publishes, retained where the aggregator would: θ_shared of noise,
of NaN, of round 10⁶ and as the last one; states that are garbage, offline, of another run, finished
and of another epoch; refusals of births and of updates. Expected: no device ends early or adopts
any of it, and all rounds are merged with both. Once in a fleet without a key, and once signed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.messages import AggregatorState, Shared, Update, Verdict, to_bytes
from broker.protocol.topics import Topics
from broker.transport.mqtt import MqttTransport
from firmware_sim.bundle.reader import Bundle
from firmware_sim.packs.format import key_text
from tests.harness.programs import Program, Programs
from tests.harness.watcher import LARGEST, Watcher

pytestmark = pytest.mark.xdist_group("fleet")
DEVICES = ("pi-1", "pi-2")
ROUNDS, ATTACKED = 12, 6


@pytest.fixture
def forger(mosquitto: Mosquitto) -> Iterator[MqttTransport]:
    transport = MqttTransport(mosquitto.address, client_id=f"forger-{secrets.token_hex(4)}")
    yield transport
    transport.close()


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Files with the aggregator's private key, and with the public one of devices."""
    key = Ed25519PrivateKey.generate()
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    private, public = tmp_path / "signing.key", tmp_path / "aggregator.pub"
    private.touch(mode=0o600)
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password))
    public.write_text(key_text(key.public_key().public_bytes_raw()), encoding="ascii")
    return private, public


def forge(forger: MqttTransport, watcher: Watcher, topics: Topics) -> None:
    """One message of every sort, all of them close to the last true one of its kind."""
    shared = watcher.heard(Shared, topics.shared)[-1]
    state = watcher.heard(AggregatorState, topics.aggregator_state)[-1]
    rng = np.random.default_rng(0)
    noise = {
        name: rng.standard_normal(value.shape).astype(np.float32)
        for name, value in shared.tensors.items()
    }
    nan = {name: np.full_like(value, np.nan) for name, value in shared.tensors.items()}
    after = shared.round + 1
    for forged in (
        replace(shared, round=after, tensors=noise),
        replace(shared, round=after, tensors=nan),
        replace(shared, round=10**6),
        replace(shared, round=after, last=True),
    ):
        forger.publish(topics.shared, to_bytes(forged), retain=True)
    for device in DEVICES:
        update = watcher.heard(Update, topics.update(device))[-1]
        for about, nonce in (("join", update.fingerprint), ("update", update.nonce)):
            refusal = Verdict(
                device=device, about=about, run=shared.run, accepted=False, nonce=nonce, text="no."
            )
            forger.publish(topics.verdict(device), to_bytes(refusal))
    forger.publish(topics.aggregator_state, b"garbage", retain=True)
    for lie in (
        replace(state, status="offline"),
        replace(state, status="finished"),
        replace(state, run="another", epoch=2**40),
        replace(state, status="offline", epoch=state.epoch + 1),
    ):
        forger.publish(topics.aggregator_state, to_bytes(lie), retain=True)
    assert forger.flush(10.0)


@pytest.mark.parametrize("signed", [False, True], ids=["without a key", "signed"])
def test_forged_messages_change_nothing_for_good(
    bundles: dict[str, Bundle],
    programs: Programs,
    watcher: Watcher,
    forger: MqttTransport,
    keys: tuple[Path, Path],
    topics: Topics,
    signed: bool,
) -> None:
    bundle, (private, public) = bundles["weak"], keys
    options = ("--slice", bundle.slice, "--quorum", "2", "--rounds", str(ROUNDS))
    key = ("--signing-key", private) if signed else ()
    aggregator = programs.aggregator(*options, *key)
    key = ("--aggregator-key", public) if signed else ()
    more = ("--steps", "40", "--resend-seconds", "2", *key)
    devices = [programs.device(name, bundle, *more) for name in DEVICES]
    aggregator.wait_for("merged", round=ATTACKED)
    forge(forger, watcher, topics)
    assert [device.exit_code() for device in devices] == [0, 0]
    assert aggregator.exit_code() == 0
    merged = aggregator.history("merged")
    assert [event["round"] for event in merged] == list(range(1, ROUNDS + 1))
    assert [event["devices"] for event in merged] == [2] * ROUNDS
    for device in devices:
        scores = {event["round"]: event["accuracy"] for event in device.history("evaluated")}
        assert max(scores) == ROUNDS, "nobody has trained a round of the forger's"
        learnt = [scores[round] for round in range(ATTACKED, ROUNDS + 1)]
        assert min(learnt) > 0.8 * scores[ATTACKED]
        assert ignored(device) & {"unsigned"} == ({"unsigned"} if signed else set())


def ignored(device: Program) -> set[str]:
    """Which kinds of messages the device has said that it ignored."""
    texts = [event["text"] for event in device.history("ignored")]
    assert texts, f"{device.name} has ignored nothing of at most {LARGEST} bytes"
    return {"unsigned" if "signed" in text else "other" for text in texts}
