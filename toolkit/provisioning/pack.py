"""Writes a pack: the bundle, broker address and credentials of one device, in a signed file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from broker.protocol.topics import AGGREGATOR
from firmware_sim.bundle.reader import MANIFEST, files_of, open_bundle
from firmware_sim.device.options import arguments as device_arguments
from firmware_sim.packs.format import (
    AGGREGATOR_KEY,
    BUNDLE,
    CREDENTIAL_FILES,
    CREDENTIALS,
    END,
    EVERYONE,
    HIGHEST_VERSION,
    INDEX,
    INDEX_LIMIT,
    KEY,
    LIMITS,
    SIGNATURE,
    SIGNED_AS,
    Entry,
    Index,
    header,
    padding,
)
from firmware_sim.packs.options import check_arguments
from toolkit.errors import ProvisionError
from toolkit.provisioning.fleet import credentials_of, known_fleet
from toolkit.provisioning.private_files import check_private, read, write
from toolkit.provisioning.signing import AGGREGATOR_PUBLIC, PRIVATE, signing_key
from toolkit.provisioning.units import DEVICE_UNIT, device_unit


@dataclass(frozen=True)
class Packed:
    """The result of packing; it contains no secrets."""

    file: Path
    index: Index
    memory_cap_mib: int  # of the bundle's profile
    unit: Path | None  # the device's unit, if its memory limit had to be changed


def pack(
    bundle: Path,
    provisioned: Path,
    device: str | None,
    *,
    fleet: str,
    out: Path | None = None,
    version: int | None = None,
    arguments: Sequence[str] = (),
    allow_readable_keys: bool = False,
) -> Packed:
    """Packs a bundle for a device of the fleet in `provisioned`; for every device if it is None.

    A pack for every device holds no credentials, and travels over the broker (`toolkit rollout`).
    Without a version it is the time in seconds, so that a later pack is a newer one. `arguments`
    are for the device's command line. Keys that other users can read are refused unless allowed.
    """
    if version is not None and not 1 <= version <= HIGHEST_VERSION:
        raise ProvisionError(f"a version is a number from 1 to {HIGHEST_VERSION}, not {version}.")
    if device == AGGREGATOR:
        raise ProvisionError("packs are for devices; the aggregator is started from its folder.")
    opened = open_bundle(bundle)
    cap = opened.manifest.profile.memory_cap_mib
    check_arguments(device_arguments(), arguments)
    known = known_fleet(provisioned, device or AGGREGATOR)
    if known.fleet != fleet:
        raise ProvisionError(f"{provisioned} belongs to fleet {known.fleet!r}, not to {fleet!r}.")
    own = credentials_of(provisioned, device) if device else None
    secrets = (own / "key.pem", own / "password") if own else ()
    check_private(provisioned / PRIVATE, *secrets, allow=allow_readable_keys)
    contents = _contents(bundle, own, provisioned / AGGREGATOR_PUBLIC)
    version = version or int(time.time())
    index = Index(
        fleet=fleet,
        device=device or EVERYONE,
        version=version,
        broker=known.url,
        arguments=tuple(arguments),
        files={
            name: Entry(len(data), hashlib.sha256(data).hexdigest())
            for name, data in contents.items()
        },
    )
    text = index.to_bytes()
    if len(text) > INDEX_LIMIT:
        raise ProvisionError("the arguments are too long for a pack.")
    key = signing_key(provisioned)
    signed = {
        KEY: key.public_key().public_bytes_raw(),
        SIGNATURE: key.sign(SIGNED_AS + text),
        INDEX: text,
    }
    usual = Path("packs", f"{device}.pack") if device else Path("rollouts", f"{version}.pack")
    file = out or provisioned / usual
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(file, archive({**signed, **contents}))  # mode 0600: it holds a password and a key
    except OSError as error:
        raise ProvisionError(f"cannot write {file} ({error.strerror}).") from error
    unit = _renew_unit(provisioned, fleet, device, cap) if device else None
    return Packed(file, index, cap, unit)


def archive(members: Mapping[str, bytes]) -> bytes:
    """Returns a tar file with these members."""
    parts = ((header(name, len(data)), data, padding(len(data))) for name, data in members.items())
    return b"".join((*chain.from_iterable(parts), END))


def _bundle_files(bundle: Path) -> tuple[str, ...]:
    return MANIFEST, *files_of(open_bundle(bundle).manifest)


def _contents(bundle: Path, credentials: Path | None, aggregator_key: Path) -> dict[str, bytes]:
    """Returns all files of the pack, in the order of the format; the key if the fleet has one."""
    sources = {f"{BUNDLE}/{name}": bundle / name for name in _bundle_files(bundle)}
    if credentials is not None:
        sources |= {f"{CREDENTIALS}/{name}": credentials / name for name in CREDENTIAL_FILES}
    if credentials is not None and aggregator_key.exists():
        sources[f"{CREDENTIALS}/{AGGREGATOR_KEY}"] = aggregator_key
    contents = {}
    for name, most in LIMITS.items():
        if name not in sources:
            continue
        try:
            contents[name] = sources[name].read_bytes()
        except FileNotFoundError as error:
            raise ProvisionError(
                f"{error.filename} is missing; if the credentials were moved to the device, "
                "`toolkit provision --rotate` makes new ones."
            ) from error
        except OSError as error:
            raise ProvisionError(f"{sources[name]} cannot be read ({error.strerror}).") from error
        if len(contents[name]) > most:
            raise ProvisionError(f"{sources[name]} has more than the {most} bytes of a pack.")
    return contents


def _renew_unit(provisioned: Path, fleet: str, device: str, cap: int) -> Path | None:
    """Gives the unit the memory cap of the bundle; returns the unit if it was changed."""
    unit = credentials_of(provisioned, device) / DEVICE_UNIT
    text = device_unit(fleet, device, cap)
    if read(unit) == text:
        return None
    write(unit, text)
    return unit
