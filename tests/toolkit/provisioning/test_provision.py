"""Provisioning: what is written, for whose eyes, and what a second run leaves alone."""

import base64
import hashlib
import ipaddress
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.aggregator import __main__ as aggregator
from broker.aggregator.signing import read_signing_key
from broker.brokers.mosquitto_process import free_port, mosquitto_path
from broker.protocol.ed25519 import is_signed
from broker.protocol.topics import Topics
from broker.transport.address import Credentials, parse_address
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected
from firmware_sim.device import options as device
from firmware_sim.packs.format import read_key
from profiles.errors import StemshareError
from toolkit.errors import CertificateError
from toolkit.provisioning.certificates import (
    Validity,
    alternative_names,
    issue_client,
    issue_server,
    make_authority,
    read_issued,
)
from toolkit.provisioning.fleet import Provisioned, provision, remove, rotate
from toolkit.provisioning.mosquitto_files import access_rules, hash_password, read_hashes

Listing = Callable[[Path], dict[str, bytes]]
HOSTS = ("gateway.local", "192.0.2.7", "2001:db8::7")
PATIENCE = 20.0  # seconds until a test gives up; nothing takes that long


@pytest.fixture
def farm(tmp_path: Path) -> Provisioned:
    return provision("farm", ["one", "two"], tmp_path / "farm", host_names=HOSTS)


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def verifier(made: Provisioned) -> verification.PolicyBuilder:
    authority = certificate(made.folder / "authority" / "ca.pem")
    return verification.PolicyBuilder().store(verification.Store([authority]))


def names(leaf: x509.Certificate) -> x509.SubjectAlternativeName:
    return leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


# Certificates


@pytest.mark.parametrize("host", HOSTS)
def test_the_server_certificate_is_valid_for_every_host(farm: Provisioned, host: str) -> None:
    leaf = certificate(farm.broker / "server.pem")
    (subject,) = alternative_names([host])
    assert isinstance(subject, x509.DNSName | x509.IPAddress)
    chain = verifier(farm).build_server_verifier(subject).verify(leaf, [])
    assert [c.subject for c in chain] == [leaf.subject, leaf.issuer]


def test_the_server_certificate_is_valid_for_no_other_host(farm: Provisioned) -> None:
    leaf = certificate(farm.broker / "server.pem")
    for host in (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))):
        with pytest.raises(verification.VerificationError):
            verifier(farm).build_server_verifier(host).verify(leaf, [])


@pytest.mark.parametrize("user", ["aggregator", "one", "two"])
def test_a_client_certificate_states_the_user_and_only_serves_clients(
    farm: Provisioned, user: str
) -> None:
    leaf = certificate(farm.credentials(user) / "certificate.pem")
    verified = verifier(farm).build_client_verifier().verify(leaf, [])
    assert verified.subjects == [x509.UniformResourceIdentifier(f"urn:stemshare:farm:{user}")]
    assert leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == user
    purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_no_authority_but_the_fleets_own_verifies(farm: Provisioned, tmp_path: Path) -> None:
    other = provision("farm", ["one"], tmp_path / "other")
    leaf = certificate(farm.credentials("one") / "certificate.pem")
    with pytest.raises(verification.VerificationError):
        verifier(other).build_client_verifier().verify(leaf, [])


def test_the_authority_signs_leaves_and_nothing_below_them(farm: Provisioned) -> None:
    extensions = certificate(farm.folder / "authority" / "ca.pem").extensions
    limits = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    assert (usage.critical, usage.value.key_cert_sign) == (True, True)
    assert not usage.value.digital_signature


def test_days_count_from_now_and_serial_numbers_differ(tmp_path: Path) -> None:
    made = provision("farm", ["one"], tmp_path / "farm", days=90)
    files = (made.broker / "server.pem", made.credentials("one") / "certificate.pem")
    ends = [certificate(file).not_valid_after_utc - datetime.now(UTC) for file in files]
    assert all(timedelta(days=89) < left <= timedelta(days=90) for left in ends)
    authority = certificate(made.folder / "authority" / "ca.pem")
    assert authority.not_valid_after_utc - datetime.now(UTC) > timedelta(days=3649)
    serials = {certificate(file).serial_number for file in (*files, made.broker / "ca.pem")}
    assert len(serials) == 3


def test_a_leaf_never_outlives_its_authority() -> None:
    authority = make_authority("farm", Validity.of(100))
    leaf = issue_client(authority, "farm", "one", Validity.of(825)).certificate
    assert leaf.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_an_expired_authority_signs_nothing() -> None:
    past = datetime.now(UTC) - timedelta(days=400)
    authority = make_authority("farm", Validity.of(100, past))
    with pytest.raises(CertificateError, match="authority expired on"):
        issue_server(authority, "farm", alternative_names(["localhost"]), Validity.of(1))


def test_a_key_of_another_certificate_is_noticed() -> None:
    one, other = (make_authority("farm", Validity.of(1)) for _ in range(2))
    with pytest.raises(CertificateError, match="the key of another one"):
        read_issued(one.certificate_pem, other.key_pem, "the folder")


# Passwords and access rules


def test_hashes_are_those_of_mosquitto_passwd(tmp_path: Path) -> None:
    """mosquitto_passwd hashes the same password; with its salt we get the same line."""
    file = tmp_path / "passwords"
    file.touch(mode=0o600)
    subprocess.run(["mosquitto_passwd", "-b", file, "one", "secret"], check=True)
    theirs = read_hashes(file.read_text(encoding="utf-8"))["one"]
    salt = base64.b64decode(theirs.split("$")[3])
    assert hash_password("secret", salt=salt) == theirs


def test_every_password_is_new_and_only_its_hash_is_with_the_broker(
    farm: Provisioned, listing: Listing, capfd: pytest.CaptureFixture[str]
) -> None:
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    hashes = read_hashes((farm.broker / "passwords").read_text(encoding="utf-8"))
    everywhere = listing(farm.folder)
    seen = set()
    for user in ("aggregator", "one", "two"):
        password = (farm.credentials(user) / "password").read_bytes().strip()
        assert len(base64.urlsafe_b64decode(password + b"=")) == 32
        _, kind, rounds, salt, hashed = hashes[user].split("$")
        again = hashlib.pbkdf2_hmac("sha512", password, base64.b64decode(salt), int(rounds))
        assert (kind, base64.b64decode(hashed)) == ("7", again)
        holders = [name for name, data in everywhere.items() if password in data]
        assert holders == [str((farm.credentials(user) / "password").relative_to(farm.folder))]
        seen.add((password, salt))
    assert len(seen) == 3


def test_the_brokers_folder_holds_what_mosquitto_needs_and_no_key_but_its_own(
    farm: Provisioned, listing: Listing
) -> None:
    held = listing(farm.broker)
    expected = "acl ca.pem data/ mosquitto.conf passwords server.key server.pem"
    assert sorted(held) == [*expected.split(), "stemshare-broker.service"]
    assert [name for name, data in held.items() if b"PRIVATE KEY" in data] == ["server.key"]


def test_access_rules_are_the_fleets_topics() -> None:
    farm = Topics("farm")
    rules = [line for line in access_rules("farm").splitlines() if line and line[0] != "#"]
    devices, everyone = rules[: rules.index("user aggregator")], "stemshare/v1/farm"
    assert set(devices) == {
        f"pattern write {everyone}/device/%u/state",
        f"pattern write {everyone}/device/%u/update/#",
        f"pattern write {everyone}/device/%u/metrics",
        f"pattern write {everyone}/device/%u/answer",
        f"pattern write {everyone}/device/%u/rollout",
        *(f"pattern read {topic}" for topic in farm.of_device("%u")),
        *(f"pattern read {topic}" for topic in farm.of_updating_device("%u")),
    }
    observer, operator = rules.index("user observer"), rules.index("user operator")
    assert set(rules[observer + 1 : operator]) == {
        *(f"topic read {topic}" for topic in farm.of_observer())
    }
    assert set(rules[operator + 1 :]) == {
        *(f"topic read {topic}" for topic in (*farm.of_observer(), *farm.of_operator())),
        f"topic read {everyone}/home/+/pause",
        f"topic write {everyone}/home/available",
        f"topic write {everyone}/home/+/state",
        "topic write homeassistant/device/stemshare-farm/+/config",
        f"topic write {everyone}/aggregator/command",
        f"topic write {everyone}/device/+/command",
        f"topic write {everyone}/device/+/state",
        f"topic write {everyone}/device/+/metrics",
        f"topic write {everyone}/device/+/rollout",
        f"topic write {everyone}/device/+/offer",
        f"topic write {everyone}/device/+/pack",
    }
    assert set(rules[len(devices) + 1 : observer]) == {
        *(f"topic read {topic}" for topic in farm.of_aggregator()),
        f"topic read {everyone}/device/+/metrics",
        f"topic write {everyone}/aggregator/#",
        f"topic write {everyone}/shared/#",
        f"topic write {everyone}/device/+/verdict",
        f"topic write {everyone}/device/+/shared/#",
    }


# The folder


def test_everything_is_for_its_owner_alone(farm: Provisioned) -> None:
    modes = {path: path.stat().st_mode & 0o777 for path in (farm.folder, *farm.folder.rglob("*"))}
    wrong = {str(p): oct(m) for p, m in modes.items() if m != (0o700 if p.is_dir() else 0o600)}
    assert wrong == {}


def test_a_second_run_adds_a_device_and_keeps_every_byte(
    farm: Provisioned, listing: Listing
) -> None:
    before = listing(farm.folder)
    again = provision("farm", ["one", "three"], farm.folder)
    after = listing(farm.folder)
    assert (again.added, again.kept) == (("three",), ("aggregator", "one"))
    assert not again.server_renewed
    passwords = "broker/passwords"
    assert after[passwords].startswith(before[passwords])
    assert read_hashes(after[passwords].decode()).keys() == {"aggregator", "one", "two", "three"}
    assert after["aggregator/members"] == b"one\ntwo\nthree\n"
    changed = {n for n in after if after[n] != before.get(n)} - {passwords, "aggregator/members"}
    assert changed == {n for n in after if n.startswith("devices/three/")}
    assert before.keys() <= after.keys()


def test_a_device_whose_folder_was_moved_away_keeps_its_password(farm: Provisioned) -> None:
    before = (farm.broker / "passwords").read_bytes()
    shutil.rmtree(farm.credentials("one"))
    assert provision("farm", ["one"], farm.folder).kept == ("aggregator", "one")
    assert (farm.broker / "passwords").read_bytes() == before
    assert not farm.credentials("one").exists()


def test_a_run_that_was_cut_off_is_finished_by_the_next(farm: Provisioned) -> None:
    """Device two has a folder but no line yet; the server's key is new, its certificate old."""
    file = farm.broker / "passwords"
    file.write_text("".join(file.read_text(encoding="utf-8").splitlines(True)[:2]))
    (farm.broker / "server.key").write_bytes(make_authority("x", Validity.of(1)).key_pem)
    again = provision("farm", ["two"], farm.folder)
    assert (again.added, again.server_renewed) == (("two",), True)
    read_issued(
        (farm.broker / "server.pem").read_bytes(),
        (farm.broker / "server.key").read_bytes(),
        "the broker's folder",
    )


def test_new_hosts_and_port_change_the_server_and_the_commands_alone(
    farm: Provisioned, listing: Listing
) -> None:
    before = listing(farm.folder)
    again = provision("farm", [], farm.folder, host_names=["Other.local"], port=18883)
    after = listing(farm.folder)
    assert again.server_renewed
    assert {name for name in after if after[name] != before[name]} == {
        "fleet.toml",
        "broker/mosquitto.conf",
        "broker/server.key",
        "broker/server.pem",
        "aggregator/run.sh",
        "aggregator/stemshare-aggregator.service",
        "devices/one/run.sh",
        "devices/two/run.sh",
    }
    leaf = certificate(farm.broker / "server.pem")
    assert names(leaf).get_values_for_type(x509.DNSName) == ["other.local"]
    assert b'"mqtts://Other.local:18883"' in after["devices/one/run.sh"]


def test_a_server_certificate_that_ends_soon_is_renewed(tmp_path: Path) -> None:
    first = provision("farm", [], tmp_path / "farm", days=29)
    before = certificate(first.broker / "server.pem")
    assert provision("farm", [], first.folder).server_renewed
    after = certificate(first.broker / "server.pem")
    assert after.not_valid_after_utc - before.not_valid_after_utc > timedelta(days=700)
    assert not provision("farm", [], first.folder).server_renewed


def test_what_the_owner_changed_in_the_brokers_files_is_kept(farm: Provisioned) -> None:
    settings = farm.broker / "mosquitto.conf"
    text = settings.read_text(encoding="utf-8")
    edited = text.replace("listener 8883", "listener 8883 192.0.2.7")
    settings.write_text(edited.replace("max_connections 1000", "max_connections 9"))
    with (farm.broker / "acl").open("a", encoding="utf-8") as file:
        file.write("user auditor\n")
    provision("farm", ["three"], farm.folder, port=9999, require_certificate=True)
    lines = settings.read_text(encoding="utf-8").splitlines()
    assert {"listener 9999 192.0.2.7", "max_connections 9", "require_certificate true"} <= {*lines}
    assert (farm.broker / "acl").read_text(encoding="utf-8").endswith("user auditor\n")


def test_rotation_renews_one_user(farm: Provisioned, listing: Listing) -> None:
    before = listing(farm.folder)
    rotate(farm.folder, "one")
    after = listing(farm.folder)
    changed = {name for name in after if after[name] != before[name]}
    mine = {f"devices/one/{name}" for name in ("certificate.pem", "key.pem", "password")}
    assert changed == {"broker/passwords", *mine}
    old, new = (read_hashes(state["broker/passwords"].decode()) for state in (before, after))
    assert {user for user in new if new[user] != old[user]} == {"one"}
    assert before.keys() == after.keys()


def test_removal_takes_the_device_and_nothing_else(farm: Provisioned, listing: Listing) -> None:
    before = listing(farm.folder)
    remove(farm.folder, "one")
    after = listing(farm.folder)
    gone = before.keys() - after.keys()
    assert gone == {name for name in before if name.startswith("devices/one/")}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"broker/passwords", "aggregator/members"}
    assert after["aggregator/members"] == b"two\n"
    assert list(read_hashes(after["broker/passwords"].decode())) == ["aggregator", "two"]


# The aggregator's key


def test_devices_have_the_public_half_of_the_key_that_the_aggregator_signs_with(
    farm: Provisioned, listing: Listing
) -> None:
    signing = read_signing_key(farm.credentials("aggregator") / "signing.key")
    for name in ("one", "two"):
        key = read_key(farm.credentials(name) / "aggregator.pub")
        assert is_signed(b"hello", signing.signer.sign(b"hello"), key)
    holders = [n for n in listing(farm.folder) if n.endswith("signing.key")]
    assert holders == ["aggregator/signing.key"]


def test_a_fleet_of_an_earlier_version_gets_a_key_at_the_next_run(
    farm: Provisioned, listing: Listing
) -> None:
    now = listing(farm.folder)
    for name in now:
        if name.endswith(("signing.key", "aggregator.pub", "members")):
            (farm.folder / name).unlink()
    provision("farm", [], farm.folder)
    after = listing(farm.folder)
    assert after.keys() == now.keys()
    assert after["aggregator.pub"] == after["devices/one/aggregator.pub"] != now["aggregator.pub"]
    assert b"--signing-key" in after["aggregator/run.sh"]
    assert b"--aggregator-key" in after["devices/one/run.sh"]


def test_the_key_of_a_fleet_is_never_replaced(farm: Provisioned, tmp_path: Path) -> None:
    """Neither by rotation, nor when the aggregator's folder has gone to the aggregator."""
    private = farm.credentials("aggregator") / "signing.key"
    before, public = private.read_bytes(), (farm.folder / "aggregator.pub").read_bytes()
    rotate(farm.folder, "aggregator")
    provision("farm", ["three"], farm.folder)
    assert private.read_bytes() == before
    assert (farm.credentials("three") / "aggregator.pub").read_bytes() == public
    farm.credentials("aggregator").rename(tmp_path / "moved")
    provision("farm", ["four"], farm.folder)
    assert not private.exists()
    assert (farm.credentials("four") / "aggregator.pub").read_bytes() == public


def test_a_run_that_was_cut_off_keeps_the_key_that_it_made(farm: Provisioned) -> None:
    public = (farm.folder / "aggregator.pub").read_bytes()
    (farm.folder / "aggregator.pub").unlink()
    provision("farm", [], farm.folder)
    assert (farm.folder / "aggregator.pub").read_bytes() == public


# Refusals


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"fleet": "a/b"}, "a fleet cannot be called 'a/b'"),
        ({"devices": ["ok", "+"]}, "a device cannot be called '+'"),
        ({"devices": ["../../x"]}, "a device cannot be called '../../x'"),
        ({"devices": ["aggregator"]}, "that is the aggregator's own name."),
        ({"host_names": ["no_name"]}, "'no_name' is neither a host name"),
        ({"host_names": ["300.1.1.1"]}, "'300.1.1.1' is neither a host name"),
        ({"host_names": ["fe80::1%eth0"]}, "'fe80::1%eth0' is neither a host name"),
        ({"host_names": ["*.local"]}, "'*.local' is neither a host name"),
        ({"host_names": [""]}, "'' is neither a host name"),
        ({"days": 0}, "a certificate is good for 1 to 3650 days, not 0."),
        ({"days": 3651}, "a certificate is good for 1 to 3650 days, not 3651."),
        ({"port": 0}, "0 is not a port; a port is a number from 1 to 65535."),
        ({"port": 65536}, "65536 is not a port; a port is a number from 1 to 65535."),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    tmp_path: Path, arguments: dict[str, object], sentence: str
) -> None:
    out = tmp_path / "farm"
    with pytest.raises(StemshareError) as caught:
        provision(**{"fleet": "farm", "devices": ["one"], "out": out, **arguments})  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_folder_of_another_fleet_is_left_alone(farm: Provisioned, listing: Listing) -> None:
    before = listing(farm.folder)
    with pytest.raises(StemshareError, match="belongs to fleet 'farm'; give fleet"):
        provision("garden", ["one"], farm.folder)
    assert listing(farm.folder) == before


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_no_fleets_folder_is_left_alone(tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    if what == "file":
        out.write_text("mine", encoding="utf-8")
    else:
        out.mkdir()
        (out / "thesis").write_text("mine", encoding="utf-8")
    with pytest.raises(StemshareError, match=r"is not a fleet's folder|File exists"):
        provision("farm", ["one"], out)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] in (["out"], ["thesis"])


def test_a_fleet_never_gets_a_second_authority(farm: Provisioned) -> None:
    """Not even if its own was moved away together with the broker's copy."""
    shutil.rmtree(farm.folder / "authority")
    assert provision("farm", ["one"], farm.folder).added == ()  # nothing to sign
    with pytest.raises(StemshareError, match=r"ca\.pem is missing; only the fleet's authority"):
        provision("farm", ["three"], farm.folder)
    (farm.broker / "ca.pem").unlink()
    with pytest.raises(StemshareError, match=r"ca\.pem is missing; only the fleet's authority"):
        provision("farm", ["one"], farm.folder)


@pytest.mark.parametrize("change", [remove, rotate])
def test_only_known_devices_can_be_changed(
    farm: Provisioned, tmp_path: Path, change: Callable[[Path, str], None]
) -> None:
    with pytest.raises(StemshareError, match=r"fleet 'farm' has no device 'nobody'\."):
        change(farm.folder, "nobody")
    with pytest.raises(StemshareError, match="a device cannot be called"):
        change(farm.folder, "../one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StemshareError, match="is not a fleet's folder"):
        change(tmp_path / "empty", "one")


def test_the_aggregator_is_not_removed(farm: Provisioned) -> None:
    with pytest.raises(StemshareError, match="that is the aggregator's own name"):
        remove(farm.folder, "aggregator")


@pytest.mark.parametrize("text", ["", "fleet = 3", "not toml", 'fleet = "farm"\nhost_names = 1\n'])
def test_a_damaged_fleet_file_is_named(farm: Provisioned, text: str) -> None:
    (farm.folder / "fleet.toml").write_text(text, encoding="utf-8")
    with pytest.raises(StemshareError, match=r"fleet\.toml is damaged"):
        provision("farm", ["one"], farm.folder)


def test_a_configuration_without_a_listener_is_named(farm: Provisioned) -> None:
    (farm.broker / "mosquitto.conf").write_text("port 1883\n", encoding="utf-8")
    with pytest.raises(StemshareError, match="does not have exactly one line 'listener'"):
        provision("farm", ["one"], farm.folder, port=1)


# With the real broker


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Provisioned]:
    """mosquitto started as the README says, in a copied folder, but on loopback alone."""
    port = free_port()
    made = provision("farm", ["one"], tmp_path / "farm", port=port)
    folder = Path(shutil.copytree(made.broker, tmp_path / "copied" / "broker"))
    settings = folder / "mosquitto.conf"
    here = f"listener {port} 127.0.0.1\nuser {folder.owner()}"  # root would become `mosquitto`
    text = settings.read_text(encoding="utf-8").replace(f"listener {port}", here)
    settings.write_text(text, encoding="utf-8")
    shutil.rmtree(made.broker)
    binary = mosquitto_path()
    assert binary is not None
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([binary, "-c", "mosquitto.conf"], cwd=folder, stderr=log)
    try:
        while b" running" not in (tmp_path / "log").read_bytes():
            assert process.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
            time.sleep(0.02)
        yield made
    finally:
        process.terminate()
        process.wait()
    assert (folder / "data" / "mosquitto.db").is_file()


def test_the_folder_of_a_user_is_all_that_it_needs(running: Provisioned, tmp_path: Path) -> None:
    """The options in a moved folder's run.sh are understood, and they let the user in."""
    show = tmp_path / "show"
    show.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    show.chmod(0o700)
    for user, program, rest in (
        ("one", device, "--bundle b --task digits --state s"),
        ("aggregator", aggregator, "--slice f --state s"),
    ):
        folder = Path(shutil.copytree(running.credentials(user), tmp_path / f"moved {user}"))
        ran = subprocess.run(
            ["sh", folder / "run.sh", *rest.split()],
            env={**os.environ, "PYTHON": str(show)},
            check=True,
            capture_output=True,
            text=True,
        )
        _, module, *options = ran.stdout.splitlines()
        args = program.arguments().parse_args(options)
        transport = MqttTransport(
            parse_address(args.broker),
            client_id="any",
            credentials=Credentials(
                args.user, args.password_file, args.ca_file, args.certificate_file, args.key_file
            ),
        )
        event = transport.receive(PATIENCE)
        transport.close()
        assert event == Connected(max_packet_bytes=2_000_000)
        assert (module, args.fleet, args.user) == (
            program.__name__.rpartition(".")[0],
            "farm",
            user,
        )
        assert getattr(args, "id", "aggregator") == user
