"""Starts and stops the mosquitto binary with a configuration of its own, on the loopback interface.

For the demo, benchmarks and tests; a fleet's broker is configured and run by its owner.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from broker.child_process import ending_with_parent
from broker.errors import TransportError
from broker.transport.address import Address

START_S = 10.0
STOP_S = 10.0
_HOST = "127.0.0.1"


def mosquitto_path() -> Path | None:
    """Returns the binary; Debian's is in /usr/sbin, which is not on the path of ordinary users."""
    for path in (None, "/usr/sbin", "/usr/local/sbin"):
        if found := shutil.which("mosquitto", path=path):
            return Path(found)
    return None


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.create_server((_HOST, 0)) as server:
        number: int = server.getsockname()[1]
        return number


class Mosquitto:
    """A mosquitto that runs while its context is entered; all its files are in `folder`.

    `extra` is further lines of its configuration; without authentication in them every client may
    connect. `persistence` keeps retained messages and sessions over a restart.
    """

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        max_packet_bytes: int | None = None,
        persistence: bool = False,
        extra: str = "",
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._max_packet_bytes = max_packet_bytes
        self._persistence = persistence
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return Address(_HOST, self.port, tls=False)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise TransportError("mosquitto is not running.")
        return self._process.pid

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        binary = mosquitto_path()
        if binary is None:
            raise TransportError("mosquitto is not installed: install the package 'mosquitto'.")
        if self._accepts():
            raise TransportError(f"mosquitto cannot start: port {self.port} is in use.")
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "mosquitto.conf"
        configuration.write_text(self._configuration(), encoding="utf-8")
        log = self.folder / "mosquitto.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [binary, "-c", configuration],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=ending_with_parent(),
            )
        deadline = time.monotonic() + START_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise TransportError(f"mosquitto did not start and said: {' / '.join(said[-3:])}.")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends it with SIGTERM, so that it writes what it persists."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Starts it again on the same port and in the same folder, also after `kill`."""
        self.stop()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _accepts(self) -> bool:
        try:
            socket.create_connection((_HOST, self.port), 0.5).close()
        except OSError:
            return False
        return True

    def _configuration(self) -> str:
        # Sends small packets at once: TCP would delay them by about 40 ms in each round.
        lines = [f"listener {self.port} {_HOST}", "set_tcp_nodelay true"]
        if "allow_anonymous" not in self._extra:
            lines.append("allow_anonymous true")
        if self._max_packet_bytes is not None:
            lines.append(f"max_packet_size {self._max_packet_bytes}")
        if self._persistence:
            lines += ["persistence true", f"persistence_location {self.folder}/"]
        if os.geteuid() == 0:
            lines.append("user root")  # otherwise it drops root's rights and cannot read its folder
        return "\n".join([*lines, self._extra, ""])
