"""The contract of whatever moves packets (a topic and its bytes), and what every transport shares.

A payload is one MQTT packet: larger messages are split above this layer. Two transports exist:
`mqtt.MqttTransport` over a real broker, and `memory.MemoryTransport` within one process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from broker.errors import TransportError

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?)\]")
_LIKE = "a broker's address looks like mqtt://host:1883 or mqtts://host:8883"
_LONGEST_TEXT = 65_535  # bytes, of a user, a password and a topic: MQTT counts them in 16 bits


@dataclass(frozen=True)
class Packet:
    """Something arrived."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Connected:
    """The link is up and the broker confirmed every subscription; comes again after each outage.

    What the broker kept for this client while it was away may arrive before it.
    """

    max_packet_bytes: int | None  # the largest whole packet that the broker takes, if it says so


@dataclass(frozen=True)
class Disconnected:
    """The link is down, or did not come up."""

    reason: str  # one sentence
    final: bool  # trying again cannot help, and the transport has stopped trying


Event = Packet | Connected | Disconnected


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when this client is lost without a goodbye."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Limits:
    """How much a transport holds in memory in each direction; what does not fit is dropped."""

    inbox_packets: int = 10_000
    inbox_bytes: int = 64 * 2**20
    outbox_packets: int = 10_000
    outbox_bytes: int = 64 * 2**20


class Transport(Protocol):
    """Moves packets at least once, in order; every method may be called from any thread."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Never waits; while there is no link, the packet waits in a bounded outbox."""

    def receive(self, timeout: float) -> Event | None:
        """The next event, or None when nothing came within `timeout` seconds."""

    def flush(self, timeout: float) -> bool:
        """Whether the broker acknowledged, within `timeout` seconds, all that was published."""

    def close(self) -> None:
        """Says goodbye, so that the will is not sent; may be called again."""

    @property
    def sent_bytes(self) -> int:
        """Payload bytes given to the network, repetitions included."""

    @property
    def received_bytes(self) -> int:
        """Payload bytes that came from the network, dropped ones included."""

    @property
    def dropped(self) -> int:
        """Packets that did not fit in the inbox, the outbox or the broker."""


def matches(topic_filter: str, topic: str) -> bool:
    """MQTT's wildcards: `+` is any one level, a final `#` any levels and also none."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


def check_topic(topic: str) -> None:
    """Raises ValueError for a topic that nobody can publish on."""
    if not topic or set(topic) & set("+#\0") or len(topic.encode()) > _LONGEST_TEXT:
        raise ValueError(f"nothing can be published on topic {topic[:80]!r}.")


def check_filters(filters: Sequence[str]) -> tuple[str, ...]:
    """The filters, or ValueError for one that MQTT does not know."""
    for name in filters:
        *before, last = name.split("/")
        wild = [level for level in (*before, last) if {*level} & {*"+#\0"}]
        if not name or "#" in before or not {*wild} <= {"+", "#"}:
            raise ValueError(f"nothing can be subscribed to with the filter {name[:80]!r}.")
    return tuple(filters)


def packet_bytes(topic: str, payload_bytes: int) -> int:
    """Bytes of a whole PUBLISH packet, as a broker counts them against its limit.

    One type byte, 1–4 length bytes, then the rest: 2 + topic, 2 packet identifier, 1 property
    length (MQTT 5), payload.
    """
    rest = 2 + len(topic.encode()) + 2 + 1 + payload_bytes
    length_bytes = next(n for n in (1, 2, 3, 4) if rest < 128**n or n == 4)
    return 1 + length_bytes + rest


@dataclass(frozen=True)
class Address:
    """Where the broker is; the password is in no text that is made of it."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mqtt{'s' if self.tls else ''}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads `mqtt://[user[:password]@]host[:port]` or `mqtts://…`; escapes (%40) are for @ : /.

    No error repeats the text, because there may be a password in any part of a mistyped one.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in DEFAULT_PORTS:
        raise TransportError(f"the broker's address has no mqtt:// or mqtts:// in front: {_LIKE}.")
    login, at, place = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if at and not user:
        raise TransportError("the broker's address has an @ but no user in front of it.")
    if max(len(unquote(part).encode()) for part in (user, password)) > _LONGEST_TEXT:
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
    """Who the client is and whom it trusts; secrets stay in files, one per line of their own."""

    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None  # None: the authorities that the system trusts
    certificate_file: Path | None = None  # the client's own, if the broker asks for one
    key_file: Path | None = None


def login(address: Address, credentials: Credentials) -> tuple[str | None, str | None]:
    """User and password, from the address or from the credentials but not from both."""
    for what, one, other in (
        ("user", address.user, credentials.user),
        ("password", address.password, credentials.password_file),
    ):
        if one is not None and other is not None:
            raise TransportError(f"the {what} is given twice: take it out of the broker's address.")
    user = address.user if credentials.user is None else credentials.user
    password = address.password
    if credentials.password_file is not None:
        password = _read_password(credentials.password_file)
    if password is not None and not user:
        raise TransportError("there is a password for the broker but no user.")
    return user, password


def _read_password(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as lines:
            password = lines.readline(_LONGEST_TEXT).rstrip("\r\n")
    except UnicodeDecodeError:
        raise TransportError(f"the password file {file} is not text.") from None  # quotes bytes
    except OSError as error:
        raise TransportError(
            f"the password file {file} cannot be read: {error.strerror}."
        ) from error
    if not password:
        raise TransportError(f"the password file {file} has an empty first line.")
    return password
