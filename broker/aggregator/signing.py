"""The key with which an aggregator signs what devices act upon."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from broker.errors import SettingsRefused
from broker.protocol.signatures import Signer


@dataclass(frozen=True)
class Signing:
    """A private key, and the public one that devices have."""

    signer: Signer = field(repr=False)
    key: bytes


def read_signing_key(file: Path) -> Signing:
    """Returns the Ed25519 key in a PEM file, as `toolkit provision` writes it."""
    # Imported only here: an aggregator without a key does not need the library.
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise SettingsRefused(
            "--signing-key needs the package cryptography: pip install cryptography."
        ) from None
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise SettingsRefused(
            f"the signing key {file} cannot be read ({error.strerror})."
        ) from None
    except (ValueError, TypeError):
        raise SettingsRefused(f"{file} does not hold an unencrypted private key.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsRefused(f"the signing key {file} is not an Ed25519 key.")
    return Signing(key, key.public_key().public_bytes_raw())
