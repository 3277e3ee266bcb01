"""Only what the holder of the fleet's key signed for a topic passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.errors import Unsigned, WireError
from broker.protocol.messages import SMALL, AggregatorState, Shared, Verdict, from_bytes, to_bytes
from broker.protocol.wire import decode, encode

TOPIC = "stemshare/v1/garden/shared"
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY = SIGNER.public_key().public_bytes_raw()
SHARED = Shared(
    run="0123",
    round=4,
    fingerprint="f" * 64,
    tensors={
        "stem/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "stem/bias": np.zeros(3, np.float32),
    },
)
MESSAGES = [
    SHARED,
    AggregatorState(status="online", run="0123", epoch=2),
    Verdict(device="pi-1", about="join", run="0123", accepted=True),
]


def signed(message: Shared | AggregatorState | Verdict, topic: str = TOPIC) -> bytes:
    return to_bytes(message, topic=topic, signer=SIGNER)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_signed_message_passes_and_says_what_it_said(
    message: Shared | AggregatorState | Verdict,
) -> None:
    found = from_bytes(type(message), signed(message), topic=TOPIC, key=KEY)
    assert to_bytes(found) == to_bytes(message)


def test_readers_without_a_key_read_signed_and_unsigned_alike() -> None:
    for payload in (signed(SHARED), to_bytes(SHARED)):
        assert to_bytes(from_bytes(Shared, payload)) == to_bytes(SHARED)


def test_unsigned_and_foreign_ones_are_refused() -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    for payload, topic in (
        (to_bytes(SHARED), TOPIC),
        (to_bytes(SHARED, topic=TOPIC, signer=stranger), TOPIC),
        (signed(SHARED), "stemshare/v1/orchard/shared"),  # signed for another fleet
    ):
        with pytest.raises(Unsigned):
            from_bytes(Shared, payload, topic=topic, key=KEY)


def test_every_changed_part_is_noticed() -> None:
    envelope = decode(signed(SHARED), limit=SMALL)
    fields, tensors = dict(envelope.fields), dict(envelope.tensors)
    kernel = tensors["stem/kernel"]
    for changed, arrays in (
        ({**fields, "round": 5}, tensors),
        ({**fields, "last": True}, tensors),
        ({**fields, "more": 1}, tensors),
        (fields, {**tensors, "stem/kernel": kernel + np.float32(1e-6)}),
        (fields, {**tensors, "stem/kernel": kernel.reshape(3, 2)}),
        (fields, {**tensors, "stem/kernel": kernel.view(np.int32)}),
        (fields, {"stem/kernel": kernel}),
        (fields, {"stem/kernel": kernel, "stem/gain": tensors["stem/bias"]}),
        ({**fields, "signature": "?"}, tensors),
        ({**fields, "signature": "é" * 88}, tensors),
        ({**fields, "signature": 7}, tensors),
        ({**fields, "signature": ""}, tensors),
    ):
        with pytest.raises(WireError):
            from_bytes(Shared, encode("shared", changed, arrays), topic=TOPIC, key=KEY)


def test_a_signed_message_cannot_become_one_of_another_kind() -> None:
    state = AggregatorState(status="online", run="0123")
    envelope = decode(signed(state), limit=SMALL)
    with pytest.raises(Unsigned):
        from_bytes(Verdict, encode("verdict", envelope.fields), topic=TOPIC, key=KEY)


def test_what_is_signed_is_pinned() -> None:
    """Devices in the field check it: the bytes under the signature must never change."""
    fields = decode(signed(replace(SHARED, tensors={})), limit=SMALL).fields
    assert fields["signature"] == PINNED


PINNED = "sX7vUE6m8K8qIIUQRtAldgh51ijwnq42VWGcw+XdVS7UEQLdaooK2fKf89RxeMBfFvo/5W4zzYg4pWtd25ZnCQ=="
