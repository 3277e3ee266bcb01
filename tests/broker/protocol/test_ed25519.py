"""Signatures: the RFC's own examples, and agreement with the library that signs."""

import random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from broker.protocol.ed25519 import is_signed

ORDER = 2**252 + 27742317777372353535851937790883648493
RFC_8032 = (  # section 7.1: public key, message, signature
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
        "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da0"
        "85ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac1"
        "8ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
)


@pytest.mark.parametrize(("key", "message", "signature"), RFC_8032)
def test_the_examples_of_the_rfc(key: str, message: str, signature: str) -> None:
    k, m, s = map(bytes.fromhex, (key, message, signature))
    assert is_signed(m, s, k)
    assert not is_signed(m + b"\0", s, k)
    assert not is_signed(m, s[::-1], k)


def test_it_agrees_with_the_library_that_signs() -> None:
    rng = random.Random(0)
    for length in (0, 1, 31, 64, 1000):
        private = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
        message = rng.randbytes(length)
        key, signature = private.public_key().public_bytes_raw(), private.sign(message)
        assert is_signed(message, signature, key)
        for _ in range(20):  # one bit of key or signature is another
            both = bytearray(key + signature)
            bit = rng.randrange(8 * len(both))
            both[bit // 8] ^= 1 << bit % 8
            changed_key, changed = bytes(both[:32]), bytes(both[32:])
            assert not is_signed(message, changed, changed_key)
            with pytest.raises((InvalidSignature, ValueError)):
                Ed25519PublicKey.from_public_bytes(changed_key).verify(changed, message)


def test_a_signature_has_one_form_only() -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    key, signature = private.public_key().public_bytes_raw(), private.sign(b"pack")
    larger = int.from_bytes(signature[32:], "little") + ORDER
    assert is_signed(b"pack", signature, key)
    assert not is_signed(b"pack", signature[:32] + larger.to_bytes(32, "little"), key)
    for wrong in (signature[:-1], signature + b"\0", b""):
        assert not is_signed(b"pack", wrong, key)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        bytes(31),
        b"\xff" * 32,  # y is not below p
        (2).to_bytes(32, "little"),  # no x goes with this y
        (1 | 1 << 255).to_bytes(32, "little"),  # x = 0 is never odd
    ],
)
def test_what_is_no_key_signs_nothing(key: bytes) -> None:
    assert not is_signed(b"pack", bytes(64), key)
