"""What systemd hears from a service, on a real socket; and that nobody else hears anything."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.systemd import Watchdog, notify


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The end of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def heard(manager: socket.socket) -> list[bytes]:
    said = []
    while True:
        try:
            said.append(manager.recv(100))
        except BlockingIOError:
            return said


def test_one_datagram_for_each_word(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname()}
    notify("READY=1", environment)
    notify("STATUS=round 3", environment)
    assert heard(manager) == [b"READY=1", b"STATUS=round 3"]


def test_an_abstract_name_begins_with_an_at() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"stemshare-test-{os.getpid()}"
        listening.bind(f"\0{name}")
        listening.setblocking(False)
        notify("READY=1", {"NOTIFY_SOCKET": f"@{name}"})
        assert heard(listening) == [b"READY=1"]


@pytest.mark.parametrize("address", ["", "/nobody/listens/here"])
def test_where_nobody_listens_nothing_happens(address: str) -> None:
    notify("READY=1", {"NOTIFY_SOCKET": address} if address else {})


def test_a_listener_that_is_behind_holds_nobody_up(manager: socket.socket) -> None:
    for _ in range(10_000):  # more than any queue holds
        notify("WATCHDOG=1", {"NOTIFY_SOCKET": manager.getsockname()})
    assert set(heard(manager)) == {b"WATCHDOG=1"}


def test_the_watchdog_hears_of_work_four_times_in_its_period(manager: socket.socket) -> None:
    now = 100.0
    environment = {
        "NOTIFY_SOCKET": manager.getsockname(),
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    watchdog = Watchdog(environment, clock=lambda: now)
    watchdog.ready()
    assert heard(manager) == [b"READY=1"], "no work yet"
    counts = []
    for _ in range(31):  # half a period, a second each
        watchdog.alive()
        watchdog.alive()
        counts += heard(manager)
        now += 1.0
    assert counts == [b"WATCHDOG=1"] * 3, "at 0, 15 and 30 s"


@pytest.mark.parametrize(
    "more", [{}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}]
)
def test_who_is_not_watched_does_not_ping(manager: socket.socket, more: dict[str, str]) -> None:
    watchdog = Watchdog({"NOTIFY_SOCKET": manager.getsockname(), **more})
    watchdog.alive()
    assert heard(manager) == []
