"""Brokers as child processes on the loopback interface, each with a folder of its own.

Every launcher starts its broker in `start`, ends it without warning in `kill`, and can start it
again on the same ports and files. `addresses` has one entry for each node.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from broker.brokers.mosquitto_process import free_port, mosquitto_path

START_SECONDS = 400.0  # the nodes of a cluster wait for each other for minutes
_HOST = "127.0.0.1"
_AEDES = """
const { Aedes } = require('aedes')
const { createServer } = require('net')
Aedes.createBroker().then(broker => createServer(broker.handle).listen(PORT, '127.0.0.1'))
"""


class NotInstalled(Exception):
    """The broker, or what it runs in, is not on this machine."""


class Launcher(ABC):
    """One broker; `nodes` processes that accept MQTT on a port each."""

    name: str

    def __init__(self, folder: Path, *, nodes: int = 1) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(nodes)]
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def addresses(self) -> list[str]:
        return [f"mqtt://{_HOST}:{port}" for port in self.ports]

    @abstractmethod
    def version(self) -> str:
        """Returns the installed version, or raises `NotInstalled`."""

    @abstractmethod
    def launch(self, node: int) -> subprocess.Popen[bytes]:
        """Starts one node."""

    def start(self) -> None:
        # All at once: after a kill of a whole cluster, each node waits for the others.
        self._processes = [self.launch(node) for node in range(len(self.ports))]
        for port in self.ports:
            self._await(port)

    def kill(self) -> None:
        """Ends every node and its helper processes without a chance to write anything."""
        for process in self._processes:
            for member in _family(process.pid):
                _signal(member, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    stop = kill  # nothing of these brokers outlives the scenario

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: str
    ) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as said:
            return subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                start_new_session=True,
            )

    def _await(self, port: int) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            try:
                socket.create_connection((_HOST, port), 0.5).close()
            except OSError:
                if any(process.poll() is not None for process in self._processes):
                    break
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"{self.name} does not listen; its log is in {self.folder}")


class Mosquitto(Launcher):
    name = "mosquitto"

    def version(self) -> str:
        binary = mosquitto_path()
        if binary is None:
            raise NotInstalled("apt-get install mosquitto")
        return _found(r"version (\S+)", [str(binary), "-h"])

    def launch(self, node: int) -> subprocess.Popen[bytes]:
        lines = [
            f"listener {self.ports[node]} {_HOST}",
            "allow_anonymous true",
            "persistence true",
            "autosave_interval 1",
            f"persistence_location {self.folder}/",
            "user root" if os.geteuid() == 0 else "",
        ]
        configuration = self.folder / "mosquitto.conf"
        configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
        binary = mosquitto_path()
        assert binary is not None
        return self.run([binary, "-c", configuration], {}, "mosquitto.log")


class Embedded(Launcher):
    name = "embedded (amqtt)"

    def version(self) -> str:
        from importlib.metadata import version

        return version("amqtt")

    def launch(self, node: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "broker.brokers.embedded", "--port", str(self.ports[node])]
        root = str(Path(__file__).parents[2])
        return self.run(command, {"PYTHONPATH": root}, "embedded.log")


class RabbitMQ(Launcher):
    name = "RabbitMQ"
    _SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # without Debian's change of user
    _CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")

    def __init__(self, folder: Path, *, nodes: int = 1) -> None:
        super().__init__(folder, nodes=nodes)
        self._epmd = free_port()
        self._amqp = [free_port() for _ in range(nodes)]
        self._distribution = [free_port() for _ in range(nodes)]

    def version(self) -> str:
        if not self._SERVER.exists():
            raise NotInstalled("apt-get install rabbitmq-server")
        return _found(r"Version: (\d[^-\s]*)", ["dpkg", "-s", "rabbitmq-server"])

    def launch(self, node: int) -> subprocess.Popen[bytes]:
        home = self.folder / f"node{node}"
        home.mkdir(exist_ok=True)
        lines = [
            f"listeners.tcp.1 = {_HOST}:{self._amqp[node]}",
            f"mqtt.listeners.tcp.1 = {_HOST}:{self.ports[node]}",
            "mqtt.allow_anonymous = true",
        ]
        (home / "rabbitmq.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (home / "plugins").write_text("[rabbitmq_mqtt].\n", encoding="utf-8")
        return self.run([self._SERVER], self._environment(node), f"node{node}.log")

    def start(self) -> None:
        super().start()
        for node in range(1, len(self.ports)):
            if (joined := self.folder / f"node{node}" / "joined").exists():
                continue
            for command in (["stop_app"], ["join_cluster", "node0@localhost"], ["start_app"]):
                subprocess.run(
                    [self._CONTROL, "-n", f"node{node}@localhost", *command],
                    env={**os.environ, **self._environment(node)},
                    check=True,
                    capture_output=True,
                    timeout=120,
                )
            joined.touch()
            self._await(self.ports[node])

    def kill(self) -> None:
        super().kill()
        for process in _environment_has("ERL_EPMD_PORT", str(self._epmd)):
            _signal(process, signal.SIGKILL)

    def _environment(self, node: int) -> dict[str, str]:
        home = self.folder / f"node{node}"
        return {
            "HOME": str(self.folder),  # where the cookie is, one for all nodes
            "RABBITMQ_NODENAME": f"node{node}@localhost",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_DIST_PORT": str(self._distribution[node]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": _HOST,
            "ERL_EPMD_PORT": str(self._epmd),
        }


class Ejabberd(Launcher):
    name = "ejabberd"

    @property
    def addresses(self) -> list[str]:  # its users have a domain
        return [f"mqtt://fleet%40localhost:fleet@{_HOST}:{port}" for port in self.ports]

    def version(self) -> str:
        if shutil.which("ejabberdctl", path="/usr/sbin") is None:
            raise NotInstalled("apt-get install ejabberd")
        return _found(r"Version: (\d[^-\s]*)", ["dpkg", "-s", "ejabberd"])

    def launch(self, node: int) -> subprocess.Popen[bytes]:
        configuration = self.folder / "ejabberd.yml"
        configuration.write_text(
            "hosts: [localhost]\nloglevel: warning\nauth_method: anonymous\n"
            "anonymous_protocol: login_anon\nallow_multiple_connections: true\n"
            f'listen:\n  -\n    port: {self.ports[node]}\n    ip: "{_HOST}"\n'
            "    module: mod_mqtt\n    backlog: 100\nmodules:\n  mod_mqtt: {}\n",
            encoding="utf-8",
        )
        libraries = next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu*/ejabberd-*"))), None)
        environment = {
            "EJABBERD_CONFIG_PATH": str(configuration),
            "EJABBERD_LOG_PATH": str(self.folder / "ejabberd.log"),
            "ERL_LIBS": str(libraries.parent if libraries else "/usr/lib"),
            "HOME": str(self.folder),
        }
        database = f'"{self.folder / "mnesia"}"'
        command = ["erl", "-noinput", "-mnesia", "dir", database, "-s", "ejabberd"]
        return self.run(command, environment, "erl.log")


class Aedes(Launcher):
    name = "aedes"

    @property
    def _modules(self) -> Path:  # one installation for every way of packing
        return self.folder.parents[1] / "node_modules"

    def version(self) -> str:
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise NotInstalled("install Node.js and npm")
        if not (self._modules / "aedes").exists():
            self._modules.mkdir(exist_ok=True)
            done = subprocess.run(
                ["npm", "install", "--silent", "--no-audit", "--no-fund", "aedes@1"],
                cwd=self._modules.parent,
                capture_output=True,
                timeout=300,
            )
            if done.returncode:
                raise NotInstalled("npm install aedes")
        package = (self._modules / "aedes" / "package.json").read_text()
        return _matched(r'"version": "([^"]+)"', package)

    def launch(self, node: int) -> subprocess.Popen[bytes]:
        program = self.folder / "aedes.js"
        program.write_text(_AEDES.replace("PORT", str(self.ports[node])), encoding="utf-8")
        return self.run(["node", program], {"NODE_PATH": str(self._modules)}, "aedes.log")


def _found(pattern: str, command: Sequence[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True)
    return _matched(pattern, ran.stdout + ran.stderr)


def _matched(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "unknown"


def _family(pid: int) -> list[int]:
    """The process and everything below it, by the kernel's list of children."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _family(int(child))
    return found


def _environment_has(name: str, value: str) -> list[int]:
    """Our own processes that were started with this variable; RabbitMQ's epmd detaches itself."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            entries = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{name}={value}".encode() in entries:
            found.append(int(path.parent.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
