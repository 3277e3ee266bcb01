"""The address of a broker, and the credentials to log in with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from broker.errors import TransportError
from broker.transport.mqtt_rules import LONGEST_TEXT
from broker.transport.secret_files import exposure

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?)\]")
_LIKE = "a broker's address looks like mqtt://host:1883 or mqtts://host:8883"


@dataclass(frozen=True)
class Address:
    """The address of a broker; its texts never show the password."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mqtt{'s' if self.tls else ''}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads `mqtt://[user[:password]@]host[:port]` or `mqtts://…`; %40 and so on stand for @ : /.

    No error repeats the text, because a mistyped one may have the password anywhere.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in DEFAULT_PORTS:
        raise TransportError(f"the broker's address has no mqtt:// or mqtts:// in front: {_LIKE}.")
    login, at, place = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if at and not user:
        raise TransportError("the broker's address has an @ but no user in front of it.")
    if max(len(unquote(part).encode()) for part in (user, password)) > LONGEST_TEXT:
        raise TransportError("the user or the password in the broker's address is too long.")
    host, port = _split_port(place.removesuffix("/"))
    default = DEFAULT_PORTS[scheme.lower()]
    return Address(
        host=host,
        port=default if port is None else port,
        tls=scheme.lower() == "mqtts",
        user=unquote(user) if at else None,
        password=unquote(password) if colon else None,
    )


def _split_port(place: str) -> tuple[str, int | None]:
    ipv6 = _IPV6.match(place)
    if ipv6:
        host = ipv6[1]
        between, colon, port = place[ipv6.end() :].partition(":")
        if between:
            raise TransportError(f"the broker's address has something after the ]: {_LIKE}.")
    else:
        host, colon, port = place.partition(":")
        if not host:
            raise TransportError(f"the broker's address names no host: {_LIKE}.")
        if not _HOST.fullmatch(host):
            raise TransportError(f"the host in the broker's address is not a name: {_LIKE}.")
    if not colon:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise TransportError("the port in the broker's address is not a number from 1 to 65535.")
    return host, int(port)


@dataclass(frozen=True)
class Credentials:
    """Who the client is, and which authority it trusts; secrets are read from files."""

    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None  # None: the authorities that the system trusts
    certificate_file: Path | None = None  # the client's own, if the broker asks for one
    key_file: Path | None = None
    allow_readable: bool = False  # use a password or key that other users can read


def login(address: Address, credentials: Credentials) -> tuple[str | None, str | None]:
    """Returns user and password, from the address or from the credentials but not from both."""
    for what, one, other in (
        ("user", address.user, credentials.user),
        ("password", address.password, credentials.password_file),
    ):
        if one is not None and other is not None:
            raise TransportError(f"the {what} is given twice: take it out of the broker's address.")
    user = address.user if credentials.user is None else credentials.user
    password = address.password
    if credentials.password_file is not None:
        check_private(credentials.password_file, credentials)
        password = _read_password(credentials.password_file)
    if password is not None and not user:
        raise TransportError("there is a password for the broker but no user.")
    return user, password


def check_private(file: Path, credentials: Credentials) -> None:
    """Raises `TransportError` if other users can read the file, unless that is allowed."""
    if not credentials.allow_readable and (exposed := exposure(file)):
        raise TransportError(exposed)


def _read_password(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as lines:
            password = lines.readline(LONGEST_TEXT).rstrip("\r\n")
    except UnicodeDecodeError:  # whose text shows bytes of the file
        raise TransportError(f"the password file {file} is not text.") from None
    except OSError as error:
        raise TransportError(
            f"the password file {file} cannot be read: {error.strerror}."
        ) from error
    if not password:
        raise TransportError(f"the password file {file} has an empty first line.")
    return password
