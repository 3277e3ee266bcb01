"""Nobody without the password sees anything but the question for it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from toolkit.dashboard import guard
from toolkit.dashboard.guard import Guard, hashed, is_loopback, is_password, read_hash
from toolkit.dashboard.server import Place, parse_place
from toolkit.errors import ObserverError


async def secret(scope: Any, receive: Any, send: Any) -> None:
    """What is guarded."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the fleet"})


def asked(guarded: Guard, kind: str, path: str, *, body: bytes = b"", cookie: str = "") -> Any:
    """Returns what the guard sends for one request."""
    scope = {"type": kind, "path": path, "method": "POST" if body else "GET"}
    scope["headers"] = [(b"cookie", cookie.encode())] if cookie else []  # type: ignore[assignment]
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guarded(scope, receive, send))  # type: ignore[arg-type]
    return sent


def header(sent: Any, name: bytes) -> str:
    return str(dict(sent[0]["headers"]).get(name, b"").decode())


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Guard:
    monkeypatch.setattr(guard, "WRONG_SECONDS", 0.0)
    return Guard(secret, password_hash=hashed("open sesame"))


def test_without_the_password_there_is_a_form_and_nothing_else(guarded: Guard) -> None:
    for path in ("/", "/_nicegui/anything", "/../"):
        sent = asked(guarded, "http", path)
        assert (sent[0]["status"], header(sent, b"location")) == (303, "/login")
        assert b"the fleet" not in sent[1]["body"]
    assert asked(guarded, "websocket", "/_nicegui_ws/")[-1] == {
        "type": "websocket.close",
        "code": 1008,
    }
    form = asked(guarded, "http", "/login")
    assert b'type="password"' in form[1]["body"]


def test_a_wrong_password_opens_nothing(guarded: Guard) -> None:
    for body in (b"password=open", b"password=", b"x", b"password=" + b"a" * 10_000):
        sent = asked(guarded, "http", "/login", body=body)
        assert (sent[0]["status"], header(sent, b"set-cookie")) == (401, "")
    assert asked(guarded, "http", "/", cookie="stemshare=guessed")[0]["status"] == 303


def test_the_password_opens_the_page_and_its_websocket(guarded: Guard) -> None:
    sent = asked(guarded, "http", "/login", body=b"password=open+sesame")
    cookie = header(sent, b"set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    token = cookie.split(";")[0]
    assert asked(guarded, "http", "/", cookie=token)[1]["body"] == b"the fleet"
    assert asked(guarded, "websocket", "/", cookie=token)[0]["status"] == 200


def test_hashes(tmp_path: Path) -> None:
    line = hashed("pässword")
    assert is_password("pässword", line)
    assert not is_password("password", line)
    assert hashed("pässword") != line  # another salt
    file = tmp_path / "hash"
    file.write_text(line)
    file.chmod(0o600)
    assert read_hash(file) == line
    file.write_text("pässword", encoding="utf-8")
    with pytest.raises(ObserverError, match=r"holds no password hash"):
        read_hash(file)
    file.write_text(line)
    file.chmod(0o644)
    with pytest.raises(ObserverError, match=r"can be read|readable"):
        read_hash(file)


def test_others_need_a_password_or_a_proxy() -> None:
    assert [
        h for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "pi") if is_loopback(h)
    ] == [
        "127.0.0.1",
        "::1",
        "localhost",
    ]
    with pytest.raises(ObserverError, match=r"can be reached by others"):
        Place("0.0.0.0", 8765).check()
    Place("0.0.0.0", 8765, password_hash=hashed("x")).check()
    Place("0.0.0.0", 8765, behind_proxy=True).check()


def test_places() -> None:
    assert parse_place("127.0.0.1:80") == ("127.0.0.1", 80)
    assert parse_place("[::1]:80") == ("::1", 80)
    assert parse_place(":80") == ("127.0.0.1", 80)
    for text in ("8765", "host:", "host:0", "host:70000", "host:x"):
        with pytest.raises(ObserverError, match=r"is not HOST:PORT"):
            parse_place(text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ObserverError, match=r"cannot be served at"):
            Place("127.0.0.1", taken.getsockname()[1]).check()
