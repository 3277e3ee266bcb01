"""The Ed25519 key that signs a fleet's packs; it is not the key of the certificate authority."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from firmware_sim.packs.format import key_text
from toolkit.errors import ProvisionError
from toolkit.provisioning.private_files import read, write

PRIVATE = Path("authority") / "pack.key"  # must not leave the machine that provisions
PUBLIC = "pack.pub"


def prepare_signing(out: Path) -> str:
    """Returns the public key in the format of devices; the first run creates the key pair."""
    if (known := read(out / PUBLIC)) is not None:
        return known  # devices trust this key, so it is never replaced
    key = Ed25519PrivateKey.generate()
    write(
        out / PRIVATE,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    public = key_text(key.public_key().public_bytes_raw())
    write(out / PUBLIC, public)
    return public


def signing_key(out: Path) -> Ed25519PrivateKey:
    """Returns the private key; raises a ProvisionError if it is missing or unusable."""
    try:
        key = serialization.load_pem_private_key((out / PRIVATE).read_bytes(), password=None)
    except FileNotFoundError as error:
        raise ProvisionError(
            f"{error.filename} is missing; only this key can sign packs for the fleet."
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise ProvisionError(f"{out / PRIVATE} does not hold an unencrypted key.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ProvisionError(f"{out / PRIVATE} is not an Ed25519 key.")
    return key
