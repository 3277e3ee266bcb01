"""The start commands of a fleet's programs: run.sh, and a systemd unit for a service."""

from __future__ import annotations

from pathlib import Path

from broker.protocol.topics import AGGREGATOR
from firmware_sim.packs.format import AGGREGATOR_KEY
from profiles import Profile, load_profile
from toolkit.provisioning.private_files import write
from toolkit.provisioning.signing import AGGREGATOR_PRIVATE
from toolkit.provisioning.units import (
    AGGREGATOR_OPTIONS,
    AGGREGATOR_UNIT,
    DEVICE_UNIT,
    aggregator_options,
    aggregator_unit,
    device_unit,
)

DEVICE_PROFILE = "weak"  # if none is given; packing a bundle sets its memory cap again
AGGREGATOR_PROFILE = "gateway"  # its memory cap is that of the aggregator's unit
TRUST = "trust.key"  # on a device, the public key of packs
MEMBERS = "members"
# Kept when a user gets new credentials.
KEPT = (DEVICE_UNIT, AGGREGATOR_OPTIONS, AGGREGATOR_PRIVATE.name)


def write_commands(
    folder: Path, fleet: str, url: str, *, trust: str | None, aggregator_key: str | None
) -> None:
    """Writes run.sh and other files that depend on the fleet into a user's `folder`.

    `trust` and `aggregator_key` are the public keys of packs and of the aggregator, if the fleet
    has them.
    """
    user, signed = folder.name, aggregator_key is not None
    write(folder / "run.sh", _command(fleet, url, user, signed=signed))
    if user == AGGREGATOR:
        host = load_profile(AGGREGATOR_PROFILE)
        write(
            folder / AGGREGATOR_UNIT,
            aggregator_unit(fleet, url, host, signed=signed),
        )
        if not (folder / AGGREGATOR_OPTIONS).exists():
            write(folder / AGGREGATOR_OPTIONS, aggregator_options())
    else:
        for name, key in ((TRUST, trust), (AGGREGATOR_KEY, aggregator_key)):
            if key is not None:
                write(folder / name, key)


def write_device_unit(folder: Path, fleet: str, profile: Profile | None) -> None:
    """Writes a device's unit if its folder exists; without a profile an existing unit is kept."""
    if folder.is_dir() and (profile is not None or not (folder / DEVICE_UNIT).exists()):
        cap = (profile or load_profile(DEVICE_PROFILE)).memory_cap_mib
        write(folder / DEVICE_UNIT, device_unit(fleet, folder.name, cap))


def _command(fleet: str, url: str, user: str, *, signed: bool) -> str:
    """Returns run.sh, which works wherever its folder is; names need no quotes in a shell."""
    if user == AGGREGATOR:
        program, rest = "broker.aggregator", "--slice FILE --state DIR"
        more = f' \\\n    --members "$here/{MEMBERS}"'
        if signed:
            more += f' --signing-key "$here/{AGGREGATOR_PRIVATE.name}"'
    else:
        program, rest = f"firmware_sim.device --id {user}", "--bundle DIR --task TASK --state DIR"
        more = f' \\\n    --aggregator-key "$here/{AGGREGATOR_KEY}"' if signed else ""
    return f"""\
#!/bin/sh
# {user} of fleet {fleet}; say the rest: sh run.sh {rest}
here=$(dirname -- "$0")
exec "${{PYTHON:-python3}}" -m {program} --fleet {fleet} \\
    --broker "{url}" --user {user} \\
    --password-file "$here/password" --ca-file "$here/ca.pem" \\
    --certificate-file "$here/certificate.pem" --key-file "$here/key.pem"{more} "$@"
"""
