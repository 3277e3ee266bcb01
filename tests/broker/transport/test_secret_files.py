"""A secret that other users can read is refused in one sentence, unless that is allowed."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import TransportError
from broker.transport.address import Credentials, login, parse_address
from broker.transport.mqtt import tls_context
from broker.transport.secret_files import exposure

ADDRESS = parse_address("mqtt://127.0.0.1:1883")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(0o600)
    return file


def refused(file: Path) -> str:
    return (
        f"others can read or change {file}, which holds a secret: chmod 600 {file}, "
        "or give --allow-readable-keys."
    )


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700, 0o500])
def test_what_the_owner_alone_can_read_is_private(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    assert exposure(secret) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o601, 0o666, 0o777])
def test_any_right_of_others_exposes_it(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    assert exposure(secret) == refused(secret)


def test_what_is_no_file_is_left_to_its_reader(tmp_path: Path) -> None:
    assert exposure(tmp_path / "none") is None
    os.mkfifo(tmp_path / "pipe", 0o666)
    assert exposure(tmp_path / "pipe") is None


def test_what_systemd_hands_over_shows_the_mask_of_an_access_list(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(secret.parent))
    assert exposure(secret) is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(secret.parent / "other"))
    assert exposure(secret) == refused(secret)


def test_a_readable_password_is_refused_and_can_be_allowed(secret: Path) -> None:
    assert login(ADDRESS, Credentials(user="me", password_file=secret)) == ("me", "secret")
    secret.chmod(0o644)
    with pytest.raises(TransportError) as caught:
        login(ADDRESS, Credentials(user="me", password_file=secret))
    assert str(caught.value) == refused(secret)
    allowed = Credentials(user="me", password_file=secret, allow_readable=True)
    assert login(ADDRESS, allowed) == ("me", "secret")


def test_a_readable_key_is_refused_before_it_is_read(secret: Path, tmp_path: Path) -> None:
    secret.chmod(0o644)
    given = Credentials(certificate_file=tmp_path / "none.pem", key_file=secret)
    with pytest.raises(TransportError) as caught:
        tls_context(given)
    assert str(caught.value) == refused(secret)
    with pytest.raises(TransportError, match=r" cannot be used: No such file or directory\.$"):
        tls_context(replace(given, allow_readable=True))
