"""What the two parties have in common: a broker in memory, a stranger, a clock, and a history.

The broker knows no access rules: the stranger may write on every topic, as in a fleet without
passwords. A party lives through many inputs, so that what it keeps of strangers can pile up; it is
made anew after `INPUTS` of them, and all inputs since then together are the reproducer.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Event
from toolkit.bench.fuzz.parties import frames
from toolkit.bench.fuzz.parties.frames import Step
from toolkit.bench.fuzz.target import check

INPUTS = 5_000  # that one party lives through
# What a step can be beside a message on one of the topics.
WAIT, RESTART, DROP = 253, 254, 255


class Lines(io.StringIO):
    """Where a party logs: nothing is kept, and each line must be one clean line of JSON."""

    def write(self, text: str) -> int:
        for line in filter(None, text.split("\n")):
            said = json.loads(line)
            clean = all(v.isprintable() for v in said.values() if isinstance(v, str))
            check(clean, f"a text in the log does not print: {line[:200]!r}")
        return len(text)


class NeverWaits(MemoryTransport):
    """A transport on which nobody waits: what has not come does not come."""

    def receive(self, timeout: float) -> Event | None:
        return super().receive(0.0)


def retained(step: Step) -> bool:
    """Returns whether the broker keeps a message for those who subscribe later."""
    return step.what % 2 == 0


class Party:
    """A session with a party; the subclasses say who it is and how it takes a step."""

    topics: Sequence[str] = ()  # on which the stranger writes

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state_folder = folder / "state"
        self._history = folder / "history"
        self._begin()

    def run(self, data: bytes) -> None:
        if self._inputs >= INPUTS:
            self.close()
            self._begin()
        self._inputs += 1
        with self._history.open("ab") as file:
            file.write(data)
        for step in frames.split(data):
            self.take(step)
        self.check()

    def reproducer(self, data: bytes) -> bytes:
        return self._history.read_bytes()

    def _begin(self) -> None:
        self._inputs = 0
        self._history.write_bytes(b"")
        shutil.rmtree(self.state_folder, ignore_errors=True)
        self.now = 0.0  # seconds of the party's clock
        self._strangers: list[MemoryTransport] = []
        self.begin()

    def add_broker(self) -> MemoryBroker:
        """Returns a broker on which the stranger writes too."""
        broker = MemoryBroker()
        self._strangers.append(MemoryTransport(broker, client_id="stranger"))
        return broker

    def say(self, step: Step) -> None:
        """The stranger publishes, or time passes."""
        if step.what == WAIT:
            self.now += len(step.payload)
        else:
            for stranger in self._strangers:
                self.publish(stranger, step)

    def publish(self, stranger: MemoryTransport, step: Step) -> None:
        stranger.publish(self.topic(step), step.payload, retain=retained(step))

    def topic(self, step: Step) -> str:
        """Returns the topic that a message goes to."""
        return self.topics[step.what % len(self.topics)]

    # --- what a party is --------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the party in an empty state folder."""
        raise NotImplementedError

    def take(self, step: Step) -> None:
        """Lets the step happen, and the party do whatever it then does."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises `Failed` if something does not hold that must hold between two inputs."""

    def close(self) -> None:
        """Ends the party."""
        raise NotImplementedError
