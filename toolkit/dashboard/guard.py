"""Who may see the page: everybody on this machine, or whoever knows the password.

The password is in the environment, or in a file as scrypt's salt and hash. A browser that has
given it gets a random cookie, which this process remembers until it ends; websockets need the
cookie too. A wrong password takes a second, whoever else is waiting.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from broker.transport.secret_files import exposure
from toolkit.errors import ObserverError

COOKIE = "stemshare"
LOGIN = "/login"
LARGEST_FORM = 4096  # bytes
WRONG_SECONDS = 1.0
_COST = {"n": 2**14, "r": 8, "p": 1}
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><title>stemshare</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>:root{{color-scheme:light dark}}body{{font:16px system-ui;display:grid;place-items:center;
min-height:90vh}}form{{display:grid;gap:.8rem;min-width:16rem}}input,button{{font:inherit;
padding:.6rem;border-radius:.4rem;border:1px solid #8888}}p{{color:#d55e00;margin:0}}</style>
<form method="post"><label for="password">Password of this dashboard</label>
<input id="password" name="password" type="password" autofocus autocomplete="current-password">
<button>Enter</button><p role="alert">{problem}</p></form></html>"""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hashed(password: str, salt: bytes | None = None) -> str:
    """Returns the line for a password file: scrypt$salt$hash."""
    salt = salt or secrets.token_bytes(16)
    digest = hashlib.scrypt(password.encode(), salt=salt, **_COST)
    return "$".join(("scrypt", *(base64.b64encode(part).decode() for part in (salt, digest))))


def read_hash(file: Path) -> str:
    """Returns the hash in a file that only its owner can read."""
    if exposed := exposure(file):
        raise ObserverError(exposed)
    try:
        line = file.read_text(encoding="ascii")[:400].strip()
        kind, salt, digest = line.split("$")
        valid = kind == "scrypt" and len(base64.b64decode(salt, validate=True)) >= 8
        valid = valid and len(base64.b64decode(digest, validate=True)) == 64
    except (OSError, ValueError):
        valid = False
    if not valid:
        raise ObserverError(
            f"{file} holds no password hash; write one with toolkit dashboard --hash-password."
        )
    return line


def is_password(password: str, line: str) -> bool:
    salt = base64.b64decode(line.split("$")[1])
    return hmac.compare_digest(hashed(password, salt), line)


class Guard:
    """Lets requests and websockets pass that have the cookie, and asks others for the password."""

    def __init__(self, app: App, *, password_hash: str) -> None:
        self._app = app
        self._hash = password_hash
        self._known: set[str] = set()
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] == LOGIN and scope["method"] == "POST":
            await self._judge(receive, send)
        elif scope["path"] == LOGIN:
            await _answer(send, 200, _FORM.format(problem=""))
        else:
            await _answer(send, 303, "", (b"location", LOGIN.encode()))

    def _knows(self, scope: Scope) -> bool:
        headers = dict(scope.get("headers", ()))
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        return COOKIE in cookies and cookies[COOKIE].value in self._known

    async def _judge(self, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more and len(body) <= LARGEST_FORM:
            part = await receive()
            body += part.get("body", b"")
            more = part.get("more_body", False)
        password = parse_qs(body[:LARGEST_FORM].decode("latin-1")).get("password", [""])[0]
        async with self._one_at_a_time:
            right = await asyncio.to_thread(is_password, password, self._hash)
            if not right:
                await asyncio.sleep(WRONG_SECONDS)
        if not right:
            await _answer(send, 401, _FORM.format(problem="That is not the password."))
            return
        token = secrets.token_urlsafe(32)
        self._known.add(token)
        cookie = f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
        await _answer(send, 303, "", (b"location", b"/"), (b"set-cookie", cookie.encode()))


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    kind = (b"content-type", b"text/html; charset=utf-8")
    fresh = (b"cache-control", b"no-store")
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [kind, fresh, *headers]})
    await send({"type": "http.response.body", "body": text.encode()})
