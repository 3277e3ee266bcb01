"""What only a real network has: passwords, permissions, certificates, brokers that say no."""

import asyncio
import datetime
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from amqtt.broker import Broker  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import broker.transport.mqtt
from broker.brokers.mosquitto_process import Mosquitto, free_port
from broker.errors import TransportError
from broker.transport.address import Address, Credentials, parse_address
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Disconnected, Event, Packet, Will

PATIENCE_S = 20.0
# The file that `mosquitto_passwd -c FILE me` writes for the password "s3cret".
PASSWORDS = (
    "me:$7$101$a2bwnDUW9kqa+/WH$"
    "4hDaJD5xYBa+xxt9lpy3nUib37zNCKB/R1+2LUNKqUZgFxJ3JJtv3+tzirrRAF7U3KL8SJ8tsYEZQwMonlyckw=="
)


@contextmanager
def client(
    address: Address, client_id: str = "me", *names: str, **more: Any
) -> Iterator[MqttTransport]:
    transport = MqttTransport(address, client_id=client_id, subscriptions=names, **more)
    try:
        yield transport
    finally:
        transport.close()


def first_event(address: Address, **more: Any) -> Event | None:
    with client(address, **more) as transport:
        return transport.receive(PATIENCE_S)


def final_reason(address: Address, **more: Any) -> str:
    """Why the transport gave up; it then does nothing more."""
    with client(address, **more) as transport:
        event = transport.receive(PATIENCE_S)
        assert isinstance(event, Disconnected), event
        assert event.final
        assert transport.receive(PATIENCE_S) is None
        return event.reason


# Passwords and permissions.


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Mosquitto]:
    """Lets in the user "me" with the password "s3cret", and on topics below ok/ alone."""
    folder = tmp_path / "guarded"
    folder.mkdir()
    (folder / "passwords").write_text(f"{PASSWORDS}\n", encoding="utf-8")
    (folder / "acl").write_text("user me\ntopic readwrite ok/#\n", encoding="utf-8")
    extra = f"allow_anonymous false\npassword_file {folder}/passwords\nacl_file {folder}/acl"
    with Mosquitto(folder, extra=extra) as running:
        yield running


@pytest.mark.parametrize("version", [4, 5])
def test_a_wrong_password_is_final(guarded: Mosquitto, version: int) -> None:
    address = parse_address(f"mqtt://me:wr0ng@127.0.0.1:{guarded.port}")
    reason = final_reason(address, version=version)
    assert "user, password or permission is wrong" in reason
    assert "wr0ng" not in reason


@pytest.mark.parametrize("version", [4, 5])
def test_to_be_nobody_is_final_where_a_password_is_wanted(guarded: Mosquitto, version: int) -> None:
    assert "does not let this user in" in final_reason(guarded.address, version=version)


def test_the_right_password_lets_in_from_the_address_and_from_a_file(
    guarded: Mosquitto, tmp_path: Path
) -> None:
    address = parse_address(f"mqtt://me:s3cret@127.0.0.1:{guarded.port}")
    assert isinstance(first_event(address), Connected)
    (tmp_path / "password").write_text("s3cret\n", encoding="utf-8")
    (tmp_path / "password").chmod(0o600)
    credentials = Credentials(user="me", password_file=tmp_path / "password")
    assert isinstance(first_event(guarded.address, credentials=credentials), Connected)


def test_a_forbidden_publication_is_final_and_names_the_topic(guarded: Mosquitto) -> None:
    address = parse_address(f"mqtt://me:s3cret@127.0.0.1:{guarded.port}")
    with client(address, "me", "ok/#") as transport:
        assert isinstance(transport.receive(PATIENCE_S), Connected)
        transport.publish("ok/a", b"1")
        transport.publish("no/a", b"2")
        assert not transport.flush(PATIENCE_S)
        assert transport.dropped == 1
        assert transport.receive(PATIENCE_S) == Packet("ok/a", b"1")
        event = transport.receive(PATIENCE_S)
        assert isinstance(event, Disconnected)
        assert event.final
        assert "publish on 'no/a'" in event.reason


# Certificates.


class Authority:
    """Signs certificates for as long as a test runs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self._write(self.file, self._sign(self.name, self.key, authority=True))

    def issue(self, name: str, host: str = "127.0.0.1", days: int = 1) -> tuple[Path, Path]:
        """Certificate and key files; with negative `days` it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        self._write(certificate, self._sign(subject, key, host=host, days=days))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        key_file.chmod(0o600)
        return certificate, key_file

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        authority: bool = False,
        host: str = "127.0.0.1",
        days: int = 1,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        own_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * day)
            .not_valid_after(now + days * day)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), False)
            .add_extension(own_key, False)
            .add_extension(signer, False)
            .sign(self.key, hashes.SHA256())
        )

    def _write(self, file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@contextmanager
def secured(authority: Authority, more: str = "", **certificate: Any) -> Iterator[Address]:
    """A mosquitto with a certificate of that authority."""
    file, key = authority.issue("server", **certificate)
    extra = f"cafile {authority.file}\ncertfile {file}\nkeyfile {key}\n{more}"
    with Mosquitto(authority.folder / "secured", extra=extra) as running:
        yield Address("127.0.0.1", running.port, tls=True)


def test_packets_pass_over_tls(authority: Authority) -> None:
    with (
        secured(authority) as address,
        client(address, "me", "a", credentials=Credentials(ca_file=authority.file)) as transport,
    ):
        assert isinstance(transport.receive(PATIENCE_S), Connected)
        sent = [bytes([number]) * 40_000 for number in range(50)]  # several TLS records each
        for payload in sent:
            transport.publish("a", payload)
        assert [transport.receive(PATIENCE_S) for _ in sent] == [Packet("a", p) for p in sent]


def test_a_broker_that_cannot_be_trusted_is_final(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    mine, theirs = (Credentials(ca_file=signer.file) for signer in (authority, stranger))
    with secured(authority) as address:
        assert "self-signed certificate in certificate chain" in final_reason(
            address, credentials=theirs
        )
        assert "self-signed" in final_reason(address)  # the system does not know it either
    with secured(authority, days=-1) as address:
        assert "certificate has expired" in final_reason(address, credentials=mine)
    with secured(authority, host="127.0.0.2") as address:
        assert "IP address mismatch" in final_reason(address, credentials=mine)


def test_a_client_proves_who_it_is_by_its_certificate(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    with secured(authority, "require_certificate true\n") as address:
        mine, theirs = (
            Credentials(None, None, authority.file, *signer.issue("device"))
            for signer in (authority, stranger)
        )
        assert isinstance(first_event(address, credentials=mine), Connected)
        nobody = Credentials(ca_file=authority.file)
        refused = "refuses this client's certificate"
        assert refused in final_reason(address, credentials=nobody)
        assert refused in final_reason(address, credentials=theirs)


def test_a_port_without_tls_is_said_to_have_none(mosquitto: Mosquitto) -> None:
    address = Address("127.0.0.1", mosquitto.port, tls=True)
    reason = f"{address} hung up, as a port does that knows no mqtts://."
    assert first_event(address) == Disconnected(reason, final=False)


def test_a_port_with_tls_is_not_spoken_to_in_plain_text(authority: Authority) -> None:
    with secured(authority) as address:
        plain = Address("127.0.0.1", address.port, tls=False)
        event = first_event(plain)
    reason = f"{plain} hung up, as a port does that wants mqtts://."
    assert event == Disconnected(reason, final=False)


def test_files_that_cannot_be_used_are_refused_at_once(
    authority: Authority, tmp_path: Path
) -> None:
    certificate = authority.issue("device")[0]
    other_key = authority.issue("another")[1]
    text = tmp_path / "text"
    text.write_text("no certificate", encoding="utf-8")
    ca, tls = authority.file, Address("127.0.0.1", 1, tls=True)
    for address, credentials, part in [
        (tls, Credentials(ca_file=tmp_path / "none"), "none cannot be used: No such file"),
        (tls, Credentials(ca_file=text), "text cannot be used: is no certificate"),
        (tls, Credentials(None, None, ca, certificate), "belong together"),
        (tls, Credentials(None, None, ca, certificate, other_key), "they do not fit"),
        (tls, Credentials(None, None, ca, certificate, tmp_path / "none"), "No such file"),
        (Address("127.0.0.1", 1, tls=False), Credentials(ca_file=ca), "without mqtts://"),
    ]:
        with pytest.raises(TransportError, match=part):
            MqttTransport(address, client_id="me", credentials=credentials)


# Brokers that are not there, or answer strangely.


def test_a_client_may_be_there_before_its_broker(tmp_path: Path) -> None:
    port = free_port()
    with client(Address("127.0.0.1", port, tls=False)) as transport:
        lost = transport.receive(PATIENCE_S)
        assert lost == Disconnected(f"nothing listens at mqtt://127.0.0.1:{port}.", final=False)
        transport.publish("a", b"early")
        with Mosquitto(tmp_path, port):
            assert isinstance(transport.receive(PATIENCE_S), Connected)
            assert transport.flush(PATIENCE_S)


def test_a_host_that_nobody_knows_may_be_known_later() -> None:
    event = first_event(Address("no-such-host.invalid", 1883, tls=False))
    assert event == Disconnected(
        "the host of mqtt://no-such-host.invalid:1883 is not known.", final=False
    )


def test_a_broker_that_keeps_silent_to_mqtt_5_is_spoken_to_in_3_1_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker.transport.mqtt, "ANSWER_S", 0.3)
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    port = free_port()

    async def plain_amqtt() -> None:
        anonymous = "amqtt.plugins.authentication.AnonymousAuthPlugin"
        listener = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
        running = Broker({"listeners": {"default": listener}, "plugins": {anonymous: {}}})
        await running.start()
        started.set()
        await stop.wait()
        await running.shutdown()
        await asyncio.sleep(0.1)

    thread = threading.Thread(target=loop.run_until_complete, args=(plain_amqtt(),))
    thread.start()
    try:
        assert started.wait(PATIENCE_S)
        assert first_event(Address("127.0.0.1", port, tls=False)) == Connected(None)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@contextmanager
def scripted_broker(*answers: bytes) -> Iterator[Address]:
    """Sends one answer after each packet that it gets, on one connection."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            for packet in answers:
                connection.recv(4096)
                connection.sendall(packet)
            while connection.recv(4096):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        yield Address("127.0.0.1", server.getsockname()[1], tls=False)
        thread.join()


CONNACK_5 = b"\x20\x03\x00\x00\x00"


def test_a_refused_subscription_is_final_and_names_the_filter() -> None:
    # Packet identifier 1, no properties, and a code per filter: granted, not authorised.
    suback = b"\x90\x05\x00\x01\x00\x01\x87"
    with (
        scripted_broker(CONNACK_5, suback) as address,
        client(address, "me", "ok", "forbidden/#") as transport,
    ):
        event = transport.receive(PATIENCE_S)
    assert isinstance(event, Disconnected)
    assert event.final
    assert "refuses the subscription to 'forbidden/#': Not authorized" in event.reason


def test_a_broker_that_says_why_it_prefers_another_client_is_believed() -> None:
    taken_over = b"\xe0\x02\x8e\x00"
    with scripted_broker(CONNACK_5 + taken_over) as address, client(address, "twin") as transport:
        assert transport.receive(PATIENCE_S) == Connected(None)
        event = transport.receive(PATIENCE_S)
    reason = f"another client with the id 'twin' connected to {address}."
    assert event == Disconnected(reason, final=True)


def test_a_refusal_that_may_heal_is_not_final() -> None:
    with scripted_broker(b"\x20\x03\x00\x88\x00") as address:
        event = first_event(address)
    assert event == Disconnected(
        f"{address} refuses the connection: Server unavailable.", final=False
    )


def test_a_goodbye_is_heard_while_packets_pour_in(mosquitto: Mosquitto) -> None:
    # To close a socket with something unread in it resets the connection, and the goodbye may be
    # lost with it: without care, one client in six leaves its will here.
    leaving = threading.Event()
    with client(mosquitto.address, "watcher", "state") as watcher:
        assert watcher.receive(PATIENCE_S) == Connected(None)

        def pour() -> None:
            with client(mosquitto.address, "writer") as writer:
                while not leaving.is_set():
                    for _ in range(50):
                        writer.publish("noise", bytes(20_000))
                    writer.flush(PATIENCE_S)

        thread = threading.Thread(target=pour)
        thread.start()
        for number in range(20):
            will = Will("state", b"lost")
            with client(mosquitto.address, f"device-{number}", "noise", will=will) as device:
                assert device.receive(PATIENCE_S) == Connected(None)
                for _ in range(10):
                    assert isinstance(device.receive(PATIENCE_S), Packet)
        leaving.set()
        thread.join()
        assert watcher.receive(0.5) is None


def test_a_client_needs_an_id() -> None:
    with pytest.raises(TransportError, match="needs an id"):
        MqttTransport(Address("127.0.0.1", 1, tls=False), client_id="")
