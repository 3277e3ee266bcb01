"""Whom a client trusts, and whom a broker lets in, before a word of MQTT is spoken.

Real mosquittos run what `provision` wrote: one as it is by default, one that requires clients'
certificates, and some whose server certificate is not what it should be.
"""

import contextlib
import shutil
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from toolkit.provisioning.certificates import Validity, alternative_names, issue_server, read_issued
from toolkit.provisioning.fleet import DEFAULT_HOSTS, Provisioned, provision

PATIENCE = 20.0  # seconds until a test gives up; nothing takes that long
Start = Callable[[Path], Mosquitto]
Posing = Callable[[Path, bytes, bytes], contextlib.AbstractContextManager[int]]
WELCOME = b"\x20\x02\x00\x00"  # CONNACK of MQTT 3.1.1: no session, accepted


@dataclass(frozen=True)
class Broker:
    made: Provisioned
    port: int


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, provisioned_mosquitto: Start
) -> Iterator[Broker]:
    made = provision("farm", ["one", "two"], tmp_path_factory.mktemp("tls") / "farm")
    with provisioned_mosquitto(made.broker) as process:
        yield Broker(made, process.port)


@pytest.fixture(scope="module")
def strict_broker(
    tmp_path_factory: pytest.TempPathFactory, provisioned_mosquitto: Start
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("tls") / "strict"
    made = provision("strict", ["one", "two"], folder, require_certificate=True)
    with provisioned_mosquitto(made.broker) as process:
        yield Broker(made, process.port)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Provisioned:
    """A fleet of the same name and devices that somebody else provisioned."""
    return provision("farm", ["one", "two"], tmp_path_factory.mktemp("foreign") / "farm")


@pytest.fixture
def posing(broker: Broker, provisioned_mosquitto: Start) -> Posing:
    """Starts a broker like the fleet's, with another server certificate."""

    @contextlib.contextmanager
    def start(folder: Path, certificate: bytes, key: bytes) -> Iterator[int]:
        shutil.copytree(broker.made.broker, folder)
        (folder / "server.pem").write_bytes(certificate)
        (folder / "server.key").write_bytes(key)
        with provisioned_mosquitto(folder) as process:
            yield process.port

    return start


def trusting(made: Provisioned) -> ssl.SSLContext:
    """Trusts that fleet's authority alone, and checks certificates by the letter (RFC 5280)."""
    context = ssl.create_default_context(cafile=made.broker / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def showing(context: ssl.SSLContext, credentials: Path) -> ssl.SSLContext:
    context.load_cert_chain(credentials / "certificate.pem", credentials / "key.pem")
    return context


@contextlib.contextmanager
def link(port: int, context: ssl.SSLContext, host: str = "localhost") -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=host) as secret,
    ):
        yield secret


def hello(user: str, password: str) -> bytes:
    """CONNECT of MQTT 3.1.1 with a clean session."""
    texts = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in ("probe", user, password))
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c" + texts
    assert len(body) < 128  # then its length is one byte
    return b"\x10" + bytes([len(body)]) + body


def answer(link: socket.socket, made: Provisioned, user: str) -> bytes:
    """What the broker says to that user's name and password."""
    password = (made.credentials(user) / "password").read_text(encoding="utf-8").strip()
    link.sendall(hello(user, password))
    return link.recv(16)


def untrusted(port: int, context: ssl.SSLContext, host: str = "localhost") -> str:
    """Why the client does not trust the broker."""
    with pytest.raises(ssl.SSLCertVerificationError) as caught, link(port, context, host):
        pass
    return caught.value.verify_message


def turned_away(port: int, context: ssl.SSLContext) -> str | None:
    """The alert with which the broker ends the handshake.

    In TLS 1.3 the client's side is done before the broker has looked at its certificate, so the
    alert comes with the first read.
    """
    with pytest.raises(ssl.SSLError) as caught, link(port, context) as secret:
        secret.recv(1)
    return caught.value.reason


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_with_the_right_authority_talks(
    broker: Broker, host: str, version: ssl.TLSVersion
) -> None:
    context = trusting(broker.made)
    context.minimum_version = context.maximum_version = version
    with link(broker.port, context, host) as secret:
        assert secret.version() == version.name.replace("_", ".")
        assert answer(secret, broker.made, "one") == WELCOME


def test_a_broker_of_another_authority_is_not_trusted(broker: Broker, foreign: Provisioned) -> None:
    """Its names are the same; its key is not."""
    assert "certificate" in untrusted(broker.port, trusting(foreign))


def test_a_broker_under_another_name_is_not_trusted(broker: Broker) -> None:
    said = untrusted(broker.port, trusting(broker.made), "broker.example")
    assert "'broker.example'" in said


def test_an_expired_broker_is_not_trusted(broker: Broker, tmp_path: Path, posing: Posing) -> None:
    folder = broker.made.folder / "authority"
    authority = read_issued(
        (folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes(), "the authority"
    )
    long_ago = Validity.of(1, datetime.now(UTC) - timedelta(days=2))
    names = alternative_names(DEFAULT_HOSTS)
    expired = issue_server(authority, "farm", names, long_ago)
    with posing(tmp_path / "expired", expired.certificate_pem, expired.key_pem) as port:
        assert untrusted(port, trusting(broker.made)) == "certificate has expired"


def test_a_device_cannot_pose_as_the_broker(broker: Broker, tmp_path: Path, posing: Posing) -> None:
    """Its certificate is of the right authority, but for clients only."""
    device = broker.made.credentials("one")
    pems = [(device / name).read_bytes() for name in ("certificate.pem", "key.pem")]
    context = trusting(broker.made)
    context.check_hostname = False  # even then
    with posing(tmp_path / "posing", *pems) as port:
        assert "purpose" in untrusted(port, context)


def test_tls_1_1_is_refused(broker: Broker) -> None:
    context = trusting(broker.made)
    context.set_ciphers("ALL:@SECLEVEL=0")  # so that this side would do it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert turned_away(broker.port, context) == "TLSV1_ALERT_PROTOCOL_VERSION"


def test_plain_text_is_not_answered_in_mqtt(broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE) as plain:
        try:
            said = answer(plain, broker.made, "one")
        except ConnectionResetError:
            said = b""
    assert not said.startswith(WELCOME[:1])


def test_a_client_with_its_certificate_and_password_is_let_in(strict_broker: Broker) -> None:
    made = strict_broker.made
    context = showing(trusting(made), made.credentials("one"))
    with link(strict_broker.port, context) as secret:
        assert answer(secret, made, "one") == WELCOME


def test_a_certificate_does_not_replace_the_password(strict_broker: Broker) -> None:
    made = strict_broker.made
    context = showing(trusting(made), made.credentials("one"))
    with link(strict_broker.port, context) as secret:
        secret.sendall(hello("one", "wrong"))
        assert secret.recv(16) == b"\x20\x02\x00\x05"  # not authorised


def test_a_client_without_a_certificate_is_turned_away(strict_broker: Broker) -> None:
    alert = turned_away(strict_broker.port, trusting(strict_broker.made))
    assert alert == "TLSV13_ALERT_CERTIFICATE_REQUIRED"


def test_a_client_of_another_authority_is_turned_away(
    strict_broker: Broker, foreign: Provisioned
) -> None:
    context = showing(trusting(strict_broker.made), foreign.credentials("one"))
    assert turned_away(strict_broker.port, context) == "TLSV1_ALERT_UNKNOWN_CA"


def test_the_broker_does_not_pass_as_a_client(strict_broker: Broker) -> None:
    context = trusting(strict_broker.made)
    context.load_cert_chain(
        strict_broker.made.broker / "server.pem", strict_broker.made.broker / "server.key"
    )
    assert turned_away(strict_broker.port, context) == "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"
