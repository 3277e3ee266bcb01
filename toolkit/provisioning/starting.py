"""The start commands of a fleet's programs: run.sh, and a systemd unit for a service."""

from __future__ import annotations

from pathlib import Path

from broker.protocol.topics import AGGREGATOR
from profiles import Profile, load_profile
from toolkit.provisioning.private_files import write
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
KEPT = (DEVICE_UNIT, AGGREGATOR_OPTIONS)  # kept when a user gets new credentials


def write_commands(folder: Path, fleet: str, url: str, *, trust: str | None) -> None:
    """Writes run.sh and other files that depend on the fleet into a user's `folder`."""
    user = folder.name
    write(folder / "run.sh", _command(fleet, url, user))
    if user == AGGREGATOR:
        host = load_profile(AGGREGATOR_PROFILE)
        write(folder / AGGREGATOR_UNIT, aggregator_unit(fleet, url, host))
        if not (folder / AGGREGATOR_OPTIONS).exists():
            write(folder / AGGREGATOR_OPTIONS, aggregator_options())
    elif trust is not None:
        write(folder / TRUST, trust)


def write_device_unit(folder: Path, fleet: str, profile: Profile | None) -> None:
    """Writes a device's unit if its folder exists; without a profile an existing unit is kept."""
    if folder.is_dir() and (profile is not None or not (folder / DEVICE_UNIT).exists()):
        cap = (profile or load_profile(DEVICE_PROFILE)).memory_cap_mib
        write(folder / DEVICE_UNIT, device_unit(fleet, folder.name, cap))


def _command(fleet: str, url: str, user: str) -> str:
    """Returns run.sh, which works wherever its folder is; names need no quotes in a shell."""
    if user == AGGREGATOR:
        program, rest = "broker.aggregator", "--slice FILE --state DIR"
    else:
        program, rest = f"firmware_sim.device --id {user}", "--bundle DIR --task TASK --state DIR"
    return f"""\
#!/bin/sh
# {user} of fleet {fleet}; say the rest: sh run.sh {rest}
here=$(dirname -- "$0")
exec "${{PYTHON:-python3}}" -m {program} --fleet {fleet} \\
    --broker "{url}" --user {user} \\
    --password-file "$here/password" --ca-file "$here/ca.pem" \\
    --certificate-file "$here/certificate.pem" --key-file "$here/key.pem" "$@"
"""
