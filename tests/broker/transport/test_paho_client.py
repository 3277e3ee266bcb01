"""paho's private methods that we override are still there, and still called.

If a test fails after an update of paho-mqtt, compare `broker/transport/paho_client.py` with the
new source of `paho.mqtt.client.Client`.
"""

import inspect
import socket
import struct
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker.transport.address import Address
from broker.transport.paho_client import Login, PahoClient


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connected_to(server: socket.socket) -> PahoClient:
    client = PahoClient(CallbackAPIVersion.VERSION2, client_id="one", reconnect_on_failure=False)
    address = Address("127.0.0.1", server.getsockname()[1], tls=False)
    client.login = Login(address, "one", (), None, None, None, None)
    client.on_socket_register_write = lambda *_: None  # as Link does: written by loop_write alone
    client.connect(address.host, address.port)
    return client


@pytest.mark.parametrize(
    ("name", "parameters"), [("_create_socket", ["self"]), ("_sock_recv", ["self", "bufsize"])]
)
def test_paho_has_the_methods_that_are_overridden(name: str, parameters: list[str]) -> None:
    method = getattr(paho.Client, name, None)
    assert method is not None, f"paho-mqtt has no {name} any more"
    assert list(inspect.signature(method).parameters) == parameters


def test_paho_connects_with_our_socket(server: socket.socket) -> None:
    client = connected_to(server)
    opened = client.socket()
    assert isinstance(opened, socket.socket)
    assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0, (
        "paho-mqtt does not call _create_socket any more"
    )
    opened.close()


def test_paho_reads_with_our_method_so_the_reason_of_a_failure_is_kept(
    server: socket.socket,
) -> None:
    client = connected_to(server)
    accepted, _ = server.accept()
    # Closing at once, without waiting, resets the connection.
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()
    client.loop_read()
    assert isinstance(client.failure, ConnectionResetError), (
        "paho-mqtt does not call _sock_recv any more"
    )
