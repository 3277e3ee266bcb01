"""Signatures of the aggregator's messages: a device with the fleet's key believes no others.

The signature is a field of the message like any other (`signature`, Ed25519, base64), so a reader
that does not know it ignores it. What is signed is a digest of the topic, the kind, all other
fields and every tensor: a message cannot be moved to another device, fleet or meaning.

    digest = SHA256( canonical JSON of {topic, kind, fields}
                     ‖ for every tensor by name: canonical JSON of [name, type, shape] ‖ its bytes )

A replayed message is still signed. Devices refuse it by what it says: rounds and epochs only grow.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from broker.errors import Unsigned
from broker.protocol.ed25519 import is_signed
from broker.protocol.slice import canonical_json
from broker.protocol.wire import Array, Envelope, dense, memory

FIELD = "signature"


class Signer(Protocol):
    """Holds a private key."""

    def sign(self, message: bytes) -> bytes:
        """Returns the 64 bytes of an Ed25519 signature."""
        ...


def signature(
    signer: Signer, topic: str, kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Array]
) -> str:
    """Returns the value of the field `signature` of a message that goes to `topic`."""
    return base64.b64encode(signer.sign(signed_digest(topic, kind, fields, tensors))).decode()


def check_signature(envelope: Envelope, topic: str, key: bytes) -> None:
    """Raises `Unsigned` if the holder of `key` did not sign this message for this topic."""
    fields = dict(envelope.fields)
    text = fields.pop(FIELD, None)
    if not isinstance(text, str):
        raise Unsigned("the message is not signed.")
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one, and text beyond ASCII another
        raise Unsigned("the message's signature is not base64.") from None
    if not is_signed(signed_digest(topic, envelope.kind, fields, envelope.tensors), found, key):
        raise Unsigned("the message is not signed by this fleet's aggregator.")


def signed_digest(
    topic: str, kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Array]
) -> bytes:
    about = canonical_json({"topic": topic, "kind": kind, "fields": dict(fields)})
    found = hashlib.sha256(about.encode())
    for name, array in sorted(tensors.items()):
        stored = dense(array)
        found.update(canonical_json([name, stored.dtype.str, stored.shape]).encode())
        found.update(memory(stored))
    return found.digest()
