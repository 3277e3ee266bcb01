"""The keys that sign for a fleet, Ed25519: one for its packs, one for its aggregator.

Both are apart from the authority of the certificates. Each is made once: devices have the public
half, so a second key would make them ignore everything that the fleet says.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from firmware_sim.packs.format import AGGREGATOR_KEY, key_text
from toolkit.errors import ProvisionError
from toolkit.provisioning.private_files import read, write

PRIVATE = Path("authority") / "pack.key"  # must not leave the machine that provisions
PUBLIC = "pack.pub"
AGGREGATOR_PRIVATE = Path("aggregator") / "signing.key"  # goes to the aggregator with its folder
AGGREGATOR_PUBLIC = AGGREGATOR_KEY


def prepare_signing(out: Path) -> str:
    """Returns the public key in the format of devices; the first run creates the key pair."""
    if (known := read(out / PUBLIC)) is not None:
        return known  # devices trust this key, so it is never replaced
    _make_key(out / PRIVATE)
    public = _public_text(signing_key(out))
    write(out / PUBLIC, public)
    return public


def prepare_aggregator_key(out: Path) -> None:
    """Makes the aggregator's key, unless the fleet has one or the aggregator's folder is away."""
    private = out / AGGREGATOR_PRIVATE
    if read(out / AGGREGATOR_PUBLIC) is not None or not private.parent.is_dir():
        return
    if not private.exists():  # it does if a run was cut off here
        _make_key(private)
    write(out / AGGREGATOR_PUBLIC, _public_text(_load_key(private)))


def signing_key(out: Path) -> Ed25519PrivateKey:
    """Returns the private key of packs; raises a ProvisionError if it is missing or unusable."""
    try:
        return _load_key(out / PRIVATE)
    except FileNotFoundError as error:
        raise ProvisionError(
            f"{error.filename} is missing; only this key can sign packs for the fleet."
        ) from error


def _make_key(file: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write(file, pem)


def _load_key(file: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise ProvisionError(f"{file} does not hold an unencrypted key.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ProvisionError(f"{file} is not an Ed25519 key.")
    return key


def _public_text(key: Ed25519PrivateKey) -> str:
    return key_text(key.public_key().public_bytes_raw())
