"""Serves the page of an observer over HTTP; everything that a browser needs comes from here."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from toolkit.dashboard.guard import Guard, is_loopback
from toolkit.errors import ObserverError
from toolkit.observing.observer import Observer, in_background

# NiceGUI looks for it at import; the page has no use for it, and it takes memory and time.
os.environ.setdefault("MATPLOTLIB", "false")
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><g fill="none" '
    'stroke="#009e73" stroke-width="3.4" stroke-linecap="round"><path d="M16 29V16"/>'
    '<path d="M16 16C16 9 10 6 4 6c0 7 5 10 12 10"/><path d="M16 13c0-6 5-9 12-9 0 6-5 9-12 9" '
    'stroke="#0072b2"/></g></svg>'
)


@dataclass(frozen=True)
class Place:
    """Where the page is served, and to whom."""

    host: str
    port: int
    password_hash: str | None = None
    behind_proxy: bool = False  # which asks for a password itself

    def check(self) -> None:
        """Raises `ObserverError` if strangers could see the page, or nobody could."""
        if not (is_loopback(self.host) or self.password_hash or self.behind_proxy):
            raise ObserverError(
                f"{self.host} can be reached by others: give --password-hash-file, or say "
                "--behind-proxy if a proxy asks for a password."
            )
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            with socket.socket(family) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((self.host, self.port))
        except OSError as error:
            raise ObserverError(
                f"the dashboard cannot be served at {self} ({error.strerror})."
            ) from None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_place(text: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ObserverError(f"{text[:80]!r} is not HOST:PORT, as 127.0.0.1:8765 is.")
    return host.strip("[]") or "127.0.0.1", int(port)


def serve(observer: Observer, place: Place, steer: Callable[[str, str], str] | None = None) -> None:
    """Serves until SIGINT or SIGTERM."""
    from nicegui import app, ui

    from toolkit.dashboard.page import Page, Shown

    shown = Shown(observer)

    @ui.page("/", title=f"{observer.status.fleet} · stemshare")
    def page() -> None:
        Page(shown, steer)

    if place.password_hash:
        app.add_middleware(Guard, password_hash=place.password_hash)
    with in_background(observer, failed=lambda reason: setattr(observer, "problem", reason)):
        ui.run(
            host=place.host,
            port=place.port,
            dark=None,
            favicon=_ICON,
            reload=False,
            show=False,
            show_welcome_message=False,
            storage_secret=secrets.token_hex(16),
            binding_refresh_interval=1.0,
            message_history_length=0,
            proxy_headers=place.behind_proxy,
        )
