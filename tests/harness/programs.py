"""The programs of a fleet as a user starts them; their logs can be read while they run."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.topics import Topics
from broker.transport.address import Address
from firmware_sim.bundle.reader import Bundle
from tests.harness.waiting import PATIENCE, wait_until
from toolkit.fleet.processes import Child, stopping

TOPICS = Topics("orchard")  # of the fleet that all programs of a test belong to


class Program(Child):
    """A child that can be signalled, and asked for all that it has logged."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        super().__init__(name, module, arguments, log)
        self.log = log
        self._history: list[dict[str, Any]] = []

    def history(self, event: str = "") -> list[dict[str, Any]]:
        """Returns its events so far, all or of one name."""
        self._history += self.events()
        return [e for e in self._history if event in ("", e["event"])]

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Returns the first such event with these fields."""

        def find() -> dict[str, Any] | None:
            return next((e for e in self.history(event) if fields.items() <= e.items()), None)

        try:
            wait_until(lambda: find() or not self.running, f"{event} {fields} of {self.name}")
            return find() or pytest.fail(f"{self.name} has ended without {event} {fields}")
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}; it said: {self.log.read_text()[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Waits until it has ended by itself."""
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} does not end; it said: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Ends it without a chance to say or write anything."""
        self.send(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        if self.running:
            self.send(signal.SIGCONT)  # a test may have left it hanging
        super().stop()


@dataclass
class Programs:
    """Starts the programs of a fleet; the same call again is the same command again."""

    folder: Path
    broker: Address
    children: list[Child] = field(default_factory=list)

    def aggregator(self, *arguments: str | Path) -> Program:
        return self.start("aggregator", "broker.aggregator", arguments)

    def device(self, name: str, bundle: Bundle, *arguments: str | Path) -> Program:
        own = ("--id", name, "--bundle", bundle.folder, "--task", "digits")
        return self.start(name, "firmware_sim.device", (*own, *arguments))

    def start(self, name: str, module: str, arguments: Iterable[str | Path]) -> Program:
        link = ("--fleet", TOPICS.fleet, "--broker", str(self.broker))
        state = ("--state", self.folder / name)
        log = self.folder / f"{name}-{len(self.children)}.jsonl"
        command = [str(part) for part in (*link, *state, *arguments)]
        child = Program(name, module, command, log)
        self.children.append(child)
        return child


@pytest.fixture
def topics() -> Topics:
    return TOPICS


@pytest.fixture
def programs(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Programs]:
    started = Programs(tmp_path, mosquitto.address)
    with stopping(started.children):
        yield started
