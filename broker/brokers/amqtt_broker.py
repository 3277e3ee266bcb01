"""amqtt's broker with some of its faults corrected.

The corrections override or call private parts of amqtt; they are all in this module, and
`tests/broker/brokers/test_amqtt_broker.py` fails if a new version of amqtt no longer has them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter  # type: ignore[import-untyped]
from amqtt.broker import Broker  # type: ignore[import-untyped]
from amqtt.mqtt.constants import QOS_0  # type: ignore[import-untyped]
from amqtt.mqtt.protocol.broker_handler import (  # type: ignore[import-untyped]
    BrokerProtocolHandler,
)
from amqtt.plugins.base import BaseAuthPlugin  # type: ignore[import-untyped]
from amqtt.session import Session  # type: ignore[import-untyped]

_WRONG_VERSION = b"\x20\x02\x00\x01"  # CONNACK: "unacceptable protocol version"
_MQTT_3_1_1 = 4
_UP_TO_LEVEL = 2 + 4 + 1  # bytes after the fixed header: a length, "MQTT", the protocol level


class EveryoneIsSomebody(BaseAuthPlugin):  # type: ignore[misc]
    """Accepts every client, but not as anonymous: for anonymous clients amqtt keeps no session."""

    async def authenticate(self, *, session: Session) -> bool:
        return True


class CorrectedBroker(Broker):  # type: ignore[misc]
    """amqtt's broker; each method says which fault it corrects."""

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """Refuses MQTT 5 with an answer; amqtt misreads its CONNECT and never answers."""
        try:
            start = await _start_of_connect(reader)
            if start[-1] == _MQTT_3_1_1:
                adapter = _ReaderAfter(start, reader)
                await self._client_connected(listener_name, adapter, StreamWriterAdapter(writer))
            else:
                writer.write(_WRONG_VERSION)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left before its CONNECT was complete
        except asyncio.CancelledError:
            writer.transport.abort()  # the broker stops, and asyncio would log a raised one
        finally:
            writer.close()  # amqtt does not always do so
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Sends retained messages when a client subscribes, as MQTT specifies.

        amqtt also sends those of everybody's subscriptions, with QoS 0, to every client that
        connects.
        """
        name, qos = subscription
        holders = {holder.client_id: held for holder, held in self.subscriptions.get(name, [])}
        if qos != QOS_0 or holders.get(session.client_id) == QOS_0:
            await super()._publish_retained_messages_for_subscription(subscription, session)

    # When a client connects while its old connection still exists, amqtt ends the old one and then
    # regards the client as disconnected: before it has served the new connection, or later.

    async def _publish_session_retained_messages(self, session: Session) -> None:
        if not session.transitions.is_connected():
            session.transitions.connect()
        await super()._publish_session_retained_messages(session)

    async def _handle_disconnect(
        self, session: Session, handler: BrokerProtocolHandler, waiter: asyncio.Future[Any]
    ) -> None:
        await super()._handle_disconnect(session, handler, waiter)
        if self._get_handler(session) not in (None, handler):
            session.transitions.connect()

    def port(self) -> int:
        """Returns the port on which it listens, also if the system chose it."""
        server: Any = self._servers["default"].instance
        number: int = server.sockets[0].getsockname()[1]
        return number


class _ReaderAfter(StreamReaderAdapter):  # type: ignore[misc]
    """Reads a stream from its beginning, of which `start` was read before."""

    def __init__(self, start: bytes, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._start = start

    async def read(self, n: int = -1) -> bytes:
        end = len(self._start) if n < 0 else n
        start, self._start = self._start[:end], self._start[end:]
        rest: bytes = b"" if len(start) == n else await super().read(max(n - len(start), -1))
        return start + rest


async def _start_of_connect(reader: asyncio.StreamReader) -> bytes:
    """Reads the first packet up to the protocol level of a CONNECT."""
    start = await reader.readexactly(2)
    while start[-1] & 0x80 and len(start) < 5:  # the packet's length takes one to four bytes
        start += await reader.readexactly(1)
    return start + await reader.readexactly(_UP_TO_LEVEL)
