"""The paho client of one connection, with the two private methods that paho offers no hook for.

`tests/broker/transport/test_paho_client.py` fails if a new version of paho-mqtt no longer has or
no longer calls them. Everything else uses paho's public interface.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field

import paho.mqtt.client as paho

from broker.transport.address import Address
from broker.transport.transport import Will

CONNECT_S = 5.0  # for TCP and TLS, per address of the host


@dataclass(frozen=True)
class Login:
    """What a client sends about itself when it connects."""

    address: Address
    client_id: str
    subscriptions: tuple[str, ...]
    will: Will | None
    user: str | None
    password: str | None = field(repr=False)
    tls: ssl.SSLContext | None
    keep_session: bool = True  # while the client is away; not for one that only looks


class PahoClient(paho.Client):
    """A paho client that keeps the reason for which a connection failed."""

    login: Login
    failure: OSError | None = None  # what ended the connection; None is the end of the stream

    def _create_socket(self) -> socket.socket:
        """Opens the socket itself: paho's own leaks it if TLS fails, and sets no TCP_NODELAY."""
        address = self.login.address
        plain = socket.create_connection((address.host, address.port), CONNECT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.login.tls is None:
            return plain
        return self.login.tls.wrap_socket(plain, server_hostname=address.host)

    def _sock_recv(self, bufsize: int) -> bytes:
        """Keeps the error: paho turns every error into one and the same code."""
        try:
            return super()._sock_recv(bufsize)
        except BlockingIOError:
            raise
        except OSError as error:
            self.failure = error
            raise
