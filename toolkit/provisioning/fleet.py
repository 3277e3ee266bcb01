"""Provisions a fleet: certificates, passwords and access rules for private communication.

    OUT/fleet.toml       the fleet's name and how its broker is reached
    OUT/authority/       the authority's certificate and key, and the key that signs packs; they
                         must not leave the machine that provisions
    OUT/broker/          everything that mosquitto needs, and no secret of a client
    OUT/aggregator/      the aggregator's credentials, the key that signs its messages, the list of
                         members, and run.sh, which starts it with them
    OUT/devices/<id>/    a device's credentials; to be moved there, as a folder or in a pack

The last three contain a systemd unit each.

Existing files are kept, so a second run adds devices and changes no credentials. A device is known
if the broker's password file has a line for it: its folder may have been moved to the device.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from broker.protocol.topics import AGGREGATOR, OBSERVER, OPERATOR, check_name
from profiles import Profile
from profiles.errors import StemshareError
from toolkit.errors import CertificateError, ProvisionError
from toolkit.provisioning.certificates import (
    AUTHORITY_DAYS,
    Issued,
    Validity,
    alternative_names,
    issue_client,
    issue_server,
    make_authority,
    read_issued,
    serves,
)
from toolkit.provisioning.enrolment import prepare_plugin
from toolkit.provisioning.mosquitto_files import (
    access_rules,
    configuration,
    hash_password,
    new_password,
    password_lines,
    read_hashes,
)
from toolkit.provisioning.private_files import check_private, make_folder, put, read, write
from toolkit.provisioning.signing import (
    AGGREGATOR_PUBLIC,
    PRIVATE,
    PUBLIC,
    prepare_aggregator_key,
    prepare_signing,
)
from toolkit.provisioning.starting import KEPT, MEMBERS, write_commands, write_device_unit
from toolkit.provisioning.units import BROKER_UNIT, broker_unit

DEFAULT_HOSTS = ("localhost", "127.0.0.1")
DEFAULT_PORT = 8883
DEFAULT_DAYS = 825
FLEET = "fleet.toml"
CONFIGURATION = Path("broker") / "mosquitto.conf"
PASSWORDS = Path("broker") / "passwords"
ROLES = (OBSERVER, OPERATOR)  # users who are no devices
RENEW_BEFORE = timedelta(days=30)  # a run replaces a server certificate that ends sooner


@dataclass(frozen=True)
class Fleet:
    """The contents of `fleet.toml`."""

    fleet: str
    host_names: tuple[str, ...]
    port: int
    require_certificate: bool
    dynamic: bool = False  # users are kept by mosquitto's dynamic security plugin

    @property
    def url(self) -> str:
        """The address of the broker for clients."""
        host = self.host_names[0]
        place = f"[{host}]" if ":" in host else host  # an IPv6 address
        return f"mqtts://{place}:{self.port}"


@dataclass(frozen=True)
class Provisioned:
    """The result of a run; it contains no secrets."""

    folder: Path
    fleet: Fleet
    added: tuple[str, ...]  # users with new credentials
    kept: tuple[str, ...]  # given users that had credentials already
    server_renewed: bool  # then mosquitto needs a SIGHUP

    @property
    def broker(self) -> Path:
        return self.folder / "broker"

    def credentials(self, user: str) -> Path:
        return credentials_of(self.folder, user)


def provision(
    fleet: str,
    devices: Sequence[str],
    out: Path,
    *,
    host_names: Sequence[str] = (),
    days: int = DEFAULT_DAYS,
    port: int | None = None,
    require_certificate: bool | None = None,
    dynamic: bool = False,
    profile: Profile | None = None,
    roles: Sequence[str] = (),
    allow_readable_keys: bool = False,
) -> Provisioned:
    """Creates the fleet's folder, or adds devices and users who look and command (`ROLES`) to it.

    Options that are not given (no host names, None) keep their values. Their first values are
    localhost and 127.0.0.1, port 8883, no client certificates, and profile weak for a device.
    """
    check_name("fleet", fleet)
    for device in devices:
        check_name("device", device)
    validity = Validity.of(days)
    alternative_names(host_names)
    with _locked(out, new=True):
        check_private(*_authority_keys(out), allow=allow_readable_keys)
        before = _read_fleet(out) or Fleet(fleet, DEFAULT_HOSTS, DEFAULT_PORT, False)
        if before.fleet != fleet:
            raise ProvisionError(
                f"{out} belongs to fleet {before.fleet!r}; give fleet {fleet!r} another folder."
            )
        now = Fleet(
            fleet,
            tuple(dict.fromkeys(host_names)) or before.host_names,
            before.port if port is None else port,
            before.require_certificate if require_certificate is None else require_certificate,
            before.dynamic or dynamic,
        )
        settings = configuration(
            read(out / CONFIGURATION),
            port=now.port,
            require_certificate=now.require_certificate,
            dynamic=now.dynamic,
        )
        write(out / FLEET, _toml(vars(now)))
        write(out / ".gitignore", "*\n")  # keys and passwords belong in no repository
        renewed = _prepare_broker(out, now, settings, validity)
        known = _hashes(out)
        users = tuple(dict.fromkeys((AGGREGATOR, *roles, *devices)))
        added = tuple(user for user in users if user not in known)
        _give_credentials(out, now, added, validity)
        if now.dynamic:
            prepare_plugin(out, fleet, _hashes(out), lambda: _authority(out, now), validity)
        _write_commands(out, now)
        for device in devices:
            write_device_unit(credentials_of(out, device), fleet, profile)
    return Provisioned(out, now, added, tuple(user for user in users if user in known), renewed)


def rotate(
    out: Path, user: str, *, days: int = DEFAULT_DAYS, allow_readable_keys: bool = False
) -> None:
    """Replaces the password, key and certificate of a device or of the aggregator."""
    validity = Validity.of(days)
    if user not in (AGGREGATOR, *ROLES):
        check_name("device", user)
    with _locked(out):
        check_private(*_authority_keys(out), allow=allow_readable_keys)
        fleet = known_fleet(out, user)
        _give_credentials(out, fleet, (user,), validity)
        _write_commands(out, fleet)


def remove(out: Path, device: str) -> None:
    """Removes a device; mosquitto refuses it after a SIGHUP with the new password file."""
    check_name("device", device)
    with _locked(out):
        known_fleet(out, device)
        left = {user: hashed for user, hashed in _hashes(out).items() if user != device}
        write(out / PASSWORDS, password_lines(left))
        _write_members(out)
        shutil.rmtree(credentials_of(out, device), ignore_errors=True)


def _prepare_broker(out: Path, fleet: Fleet, settings: str, validity: Validity) -> bool:
    """Writes `broker/` without the users; returns whether the server's certificate is new."""
    broker = out / "broker"
    for folder in (broker, broker / "data", out / "devices"):
        make_folder(folder)
    if not (broker / "ca.pem").exists():
        authority = _authority(out, fleet, make=not _hashes(out))  # never a second one
        write(broker / "ca.pem", authority.certificate_pem)
    write(out / CONFIGURATION, settings)
    if not (broker / "acl").exists():
        write(broker / "acl", access_rules(fleet.fleet))
    if not (broker / BROKER_UNIT).exists():
        write(broker / BROKER_UNIT, broker_unit())
    if (out / "authority").exists():  # it may be kept elsewhere
        prepare_signing(out)
    if _server_is_good(broker, fleet):
        return False
    names = alternative_names(fleet.host_names)
    server = issue_server(_authority(out, fleet), fleet.fleet, names, validity)
    write(broker / "server.key", server.key_pem)
    write(broker / "server.pem", server.certificate_pem)
    return True


def _server_is_good(broker: Path, fleet: Fleet) -> bool:
    try:
        pems = [(broker / name).read_bytes() for name in ("server.pem", "server.key", "ca.pem")]
        server = read_issued(pems[0], pems[1], str(broker))
    except (FileNotFoundError, CertificateError):
        return False
    names = alternative_names(fleet.host_names)
    return serves(server, names, authority=pems[2], until=datetime.now(UTC) + RENEW_BEFORE)


def _authority_keys(out: Path) -> tuple[Path, Path]:
    """Returns the files that can sign certificates and packs of the fleet."""
    return out / "authority" / "ca.key", out / PRIVATE


def _authority(out: Path, fleet: Fleet, *, make: bool = False) -> Issued:
    folder = out / "authority"
    if make and not folder.exists():
        made = make_authority(fleet.fleet, Validity.of(AUTHORITY_DAYS))
        put(folder, {"ca.pem": made.certificate_pem, "ca.key": made.key_pem})
    try:
        pems = [(folder / name).read_bytes() for name in ("ca.pem", "ca.key")]
    except FileNotFoundError as error:
        raise ProvisionError(
            f"{error.filename} is missing; only the fleet's authority can sign certificates."
        ) from error
    return read_issued(pems[0], pems[1], str(folder))


def _give_credentials(out: Path, fleet: Fleet, users: Sequence[str], validity: Validity) -> None:
    """Writes new credentials; users without a hash, after an interrupted run, get new ones too."""
    if not users:
        return
    authority = _authority(out, fleet)
    hashes = _hashes(out)
    for user in users:
        issued = issue_client(authority, fleet.fleet, user, validity)
        password = new_password()
        files = {
            "ca.pem": authority.certificate_pem,
            "certificate.pem": issued.certificate_pem,
            "key.pem": issued.key_pem,
            "password": f"{password}\n".encode(),
        }
        folder = credentials_of(out, user)
        for name in KEPT:
            if (before := read(folder / name)) is not None:
                files[name] = before.encode()
        put(folder, files)
        hashes[user] = hash_password(password)
    write(out / PASSWORDS, password_lines(hashes))


def _write_commands(out: Path, fleet: Fleet) -> None:
    """Writes the start commands into every folder of credentials that still exists."""
    known = _hashes(out)
    prepare_aggregator_key(out)
    _write_members(out)
    trust, aggregator_key = read(out / PUBLIC), read(out / AGGREGATOR_PUBLIC)
    for folder in (out / AGGREGATOR, *(out / "devices").iterdir()):
        if folder.name in known and folder.is_dir():
            write_commands(
                folder, fleet.fleet, fleet.url, trust=trust, aggregator_key=aggregator_key
            )


def _write_members(out: Path) -> None:
    """Writes the names that the aggregator lets in, one a line, if its folder is still here."""
    if (out / AGGREGATOR).is_dir():
        names = (user for user in _hashes(out) if user not in (AGGREGATOR, *ROLES))
        write(out / AGGREGATOR / MEMBERS, "".join(f"{name}\n" for name in names))


def credentials_of(out: Path, user: str) -> Path:
    """Returns the folder of a user's credentials; it may have been moved away."""
    return out / user if user in (AGGREGATOR, *ROLES) else out / "devices" / user


def _hashes(out: Path) -> dict[str, str]:
    return read_hashes(read(out / PASSWORDS) or "")


def _read_fleet(out: Path) -> Fleet | None:
    text = read(out / FLEET)
    if text is None:
        return None
    try:
        table = tomllib.loads(text)
        fleet = Fleet(**{**table, "host_names": tuple(table["host_names"])})
        check_name("fleet", fleet.fleet)
        alternative_names(fleet.host_names)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, StemshareError) as error:
        raise ProvisionError(f"{out / FLEET} is damaged: it does not state a fleet.") from error
    return fleet


def known_fleet(out: Path, user: str) -> Fleet:
    """Returns the fleet in this folder; raises a ProvisionError if it does not have the user."""
    fleet = _read_fleet(out)
    if fleet is None:
        raise ProvisionError(f"{out} is not a fleet's folder; provision the fleet first.")
    if user not in _hashes(out):
        raise ProvisionError(f"fleet {fleet.fleet!r} has no device {user[:80]!r}.")
    return fleet


@contextlib.contextmanager
def _locked(out: Path, *, new: bool = False) -> Iterator[None]:
    """Locks a fleet's folder for one run; creates the folder if `new`, else it must exist."""
    try:
        if new:
            out.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (out / FLEET).exists() and any(out.iterdir()):
            raise ProvisionError(f"{out} exists and is not a fleet's folder; choose another.")
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            out.chmod(0o700)
            yield
        finally:
            os.close(descriptor)
    except BlockingIOError as error:
        raise ProvisionError(f"another run is at work in {out}; wait for it.") from error
    except OSError as error:
        where = error.filename or out
        raise ProvisionError(f"cannot provision in {where} ({error.strerror or error}).") from error


def _toml(table: Mapping[str, object]) -> str:
    """Returns TOML; its strings, numbers, booleans and lists are written as in JSON."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
