"""A broker that needs no installation: amqtt (MQTT 3.1.1) in a thread, for one machine.

Everybody may connect, so it listens on the loopback interface unless told otherwise. It keeps
sessions and retained messages in memory alone, and gives a client five seconds to acknowledge a
packet before it forgets that packet. `python -m broker.brokers.embedded` runs it until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter  # type: ignore[import-untyped]
from amqtt.broker import Broker  # type: ignore[import-untyped]
from amqtt.mqtt.constants import QOS_0  # type: ignore[import-untyped]
from amqtt.mqtt.protocol.broker_handler import (  # type: ignore[import-untyped]
    BrokerProtocolHandler,
)
from amqtt.plugins.base import BaseAuthPlugin  # type: ignore[import-untyped]
from amqtt.session import Session  # type: ignore[import-untyped]

from broker.errors import TransportError
from broker.transport.address import Address
from profiles.errors import StemshareError

T = TypeVar("T")
_WRONG_VERSION = b"\x20\x02\x00\x01"  # CONNACK: "unacceptable protocol version"
_MQTT_3_1_1 = 4
_UP_TO_LEVEL = 2 + 4 + 1  # bytes after the fixed header: a length, "MQTT", the protocol level


class EveryoneIsSomebody(BaseAuthPlugin):  # type: ignore[misc]
    """Lets everybody in, and not as anonymous: amqtt keeps no session for those."""

    async def authenticate(self, *, session: Session) -> bool:
        return True


class _Broker(Broker):  # type: ignore[misc]
    """amqtt, with three of its faults put right."""

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """Refuses MQTT 5 with an answer; amqtt misreads its CONNECT and waits for ever."""
        try:
            start = await _start_of_connect(reader)
            if start[-1] == _MQTT_3_1_1:
                adapter = _ReaderAfter(start, reader)
                await self._client_connected(listener_name, adapter, StreamWriterAdapter(writer))
            else:
                writer.write(_WRONG_VERSION)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # gone before it said who it is
        except asyncio.CancelledError:
            writer.transport.abort()  # the broker stops, and asyncio would log a raised one
        finally:
            writer.close()  # which amqtt forgets now and then
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Sends retained messages when a client subscribes, as MQTT says.

        amqtt also sends, to every client that connects and with QoS 0, those that anybody
        subscribed to.
        """
        name, qos = subscription
        holders = {holder.client_id: held for holder, held in self.subscriptions.get(name, [])}
        if qos != QOS_0 or holders.get(session.client_id) == QOS_0:
            await super()._publish_retained_messages_for_subscription(subscription, session)

    # When a client connects while its old connection still stands, amqtt ends the old one and then
    # takes the client for disconnected: before it has served the new one, or some time after.

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
        """Where it listens, also if that was left to the system."""
        server: Any = self._servers["default"].instance
        number: int = server.sockets[0].getsockname()[1]
        return number


class _ReaderAfter(StreamReaderAdapter):  # type: ignore[misc]
    """A stream some bytes of which were read already."""

    def __init__(self, start: bytes, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._start = start

    async def read(self, n: int = -1) -> bytes:
        end = len(self._start) if n < 0 else n
        start, self._start = self._start[:end], self._start[end:]
        rest: bytes = b"" if len(start) == n else await super().read(max(n - len(start), -1))
        return start + rest


async def _start_of_connect(reader: asyncio.StreamReader) -> bytes:
    """The first packet up to where a CONNECT has its protocol level."""
    start = await reader.readexactly(2)
    while start[-1] & 0x80 and len(start) < 5:  # the packet's length takes one to four bytes
        start += await reader.readexactly(1)
    return start + await reader.readexactly(_UP_TO_LEVEL)


class EmbeddedBroker:
    """Runs from entering to leaving; port 0 is a free one."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._broker: _Broker | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port, tls=False)

    def __enter__(self) -> EmbeddedBroker:
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)  # it logs each lost client as error
        self._thread.start()
        try:
            self._broker = self._call(self._start)
        except Exception as error:
            self._end_loop()
            raise TransportError(
                f"the broker cannot listen at {self.host} port {self.port}: {_cause(error)}."
            ) from error
        self.port = self._broker.port()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._broker is not None:
            self._call(self._broker.shutdown)
            self._call(_cancel_others)
            self._broker = None
            self._end_loop()

    async def _start(self) -> _Broker:
        # max_connections 0: as many as come. amqtt has no limit for the size of a message.
        host = f"[{self.host}]" if ":" in self.host else self.host
        listener = {"type": "tcp", "bind": f"{host}:{self.port}", "max_connections": 0}
        broker = _Broker(
            {
                "listeners": {"default": listener},
                "plugins": {f"{__name__}.{EveryoneIsSomebody.__name__}": {}},
            }
        )
        await broker.start()
        return broker

    def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    """What amqtt leaves behind: deliveries that wait for an acknowledgement."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description="An MQTT 3.1.1 broker for one machine.")
    parser.add_argument("--host", default="127.0.0.1", help="where it listens (default: loopback)")
    parser.add_argument("--port", type=int, default=1883, help="0: a free one (default: 1883)")
    asked = parser.parse_args()
    try:
        with EmbeddedBroker(asked.host, asked.port) as broker:
            print(f"listening at {broker.address}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    except StemshareError as error:
        raise SystemExit(error.report) from None


if __name__ == "__main__":
    main()
