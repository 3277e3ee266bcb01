"""Notifies systemd that a service is ready, and that its loop is still running.

Sends nothing outside a unit with Type=notify and WatchdogSec=.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Sends one datagram, as sd_notify(3) does."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):  # a socket in the abstract namespace, without a file
        address = "\0" + address[1:]
    if address:
        # The receiver may be gone or slow; the service neither fails nor waits because of that.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)
            out.sendto(state.encode(), address)


class Watchdog:
    """Reports that the loop runs; call it in the loop itself, not in another thread."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = environment
        self._clock = clock
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        period = environment.get("WATCHDOG_USEC", "") if ours else ""
        self._seconds = int(period) / 1e6 / 4 if period.isdecimal() else None
        self._due = 0.0

    def ready(self) -> None:
        notify("READY=1", self._environment)

    def alive(self) -> None:
        """Reports four times in a period, however often it is called."""
        if self._seconds is not None and (now := self._clock()) >= self._due:
            self._due = now + self._seconds
            notify("WATCHDOG=1", self._environment)
