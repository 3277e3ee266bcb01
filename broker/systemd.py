"""Tells systemd that a service is ready, and that its work goes on.

Nothing is told where nobody asked for it: outside a unit with Type=notify and WatchdogSec=.
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
    if address.startswith("@"):  # an abstract name, which is no file
        address = "\0" + address[1:]
    if address:
        # Whoever listened may be gone or behind; a service neither ends nor waits because of that.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)
            out.sendto(state.encode(), address)


class Watchdog:
    """To be called from the loop that does the work, and from no thread: that is the point."""

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
        """Cheap enough for every step: only a quarter of the period apart is something sent."""
        if self._seconds is not None and (now := self._clock()) >= self._due:
            self._due = now + self._seconds
            notify("WATCHDOG=1", self._environment)
