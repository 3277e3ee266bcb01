"""A broker that needs no installation: amqtt (MQTT 3.1.1) in a thread, for one machine.

Every client may connect, so it listens on the loopback interface by default. It keeps sessions and
retained messages only in memory, and drops a packet that a client has not acknowledged within five
seconds. `python -m broker.brokers.embedded` runs it until Ctrl-C.
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

from broker.brokers.amqtt_broker import CorrectedBroker, EveryoneIsSomebody
from broker.errors import TransportError
from broker.transport.address import Address
from profiles.errors import StemshareError

T = TypeVar("T")


class EmbeddedBroker:
    """A broker that runs while its context is entered; port 0 is a free one."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._broker: CorrectedBroker | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port, tls=False)

    def __enter__(self) -> EmbeddedBroker:
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)  # lost clients are errors to it
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

    async def _start(self) -> CorrectedBroker:
        # max_connections 0: no limit. amqtt has no limit for the size of a message.
        host = f"[{self.host}]" if ":" in self.host else self.host
        listener = {"type": "tcp", "bind": f"{host}:{self.port}", "max_connections": 0}
        broker = CorrectedBroker(
            {
                "listeners": {"default": listener},
                "plugins": {f"{EveryoneIsSomebody.__module__}.{EveryoneIsSomebody.__name__}": {}},
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
    """Cancels what amqtt leaves behind: deliveries that wait for an acknowledgement."""
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
        with (
            EmbeddedBroker(asked.host, asked.port) as broker,
            contextlib.suppress(KeyboardInterrupt),
        ):
            print(f"listening at {broker.address}", flush=True)
            threading.Event().wait()
    except StemshareError as error:
        raise SystemExit(error.report) from None


if __name__ == "__main__":
    main()
