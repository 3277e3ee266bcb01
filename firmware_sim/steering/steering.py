"""The operator's commands: pause, resume, remove; kept on disk, so that a restart changes nothing.

A command is obeyed once. Its number is the Unix time in milliseconds at which it was given. The
last one that was obeyed is answered again if it is repeated; an older one, perhaps sent by somebody
who has recorded it, is refused, and so is one from the future, after which no other would be
obeyed. In a fleet with a key, only its holder can command.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from broker.durable import replace_file
from broker.errors import WireError
from broker.protocol.messages import Answer, Command, from_bytes
from broker.protocol.topics import Topics
from firmware_sim.errors import CheckpointError, FleetRefused
from firmware_sim.training.waiting import Waiting

FILE = "operator.json"
LONGEST_TEXT = 200  # characters of a reason
LARGEST_FILE = 4096  # bytes
WHATS = ("pause", "resume", "remove")
MOST_NUMBER = 2**53  # numbers are below it
DAY_MS = 24 * 3600 * 1000  # that the operator's clock may be ahead of ours
SET_MS = 1_577_836_800_000  # a clock before the year 2020 was never set


class Steering:
    """What the operator has asked of one device; also the gate that holds its training up."""

    def __init__(
        self,
        device: str,
        folder: Path,
        topics: Topics,
        *,
        key: bytes | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.removed = False
        self._device = device
        self._file = folder / FILE
        self._topic = topics.command(device)
        self._key = key
        self._clock = clock
        self._number = 0  # of the last command that was obeyed
        self._paused = ""  # why, while it is paused
        self._read()

    def __call__(self) -> Waiting | None:
        return Waiting("operator", self._paused) if self._paused else None

    def check(self) -> None:
        """Raises `FleetRefused` if the operator has removed this device."""
        if self.removed:
            raise FleetRefused(
                "the operator has removed this device from the fleet; to let it in again, delete "
                f"{self._file}."
            )

    def take(self, topic: str, payload: bytes) -> Answer | None:
        """Obeys a command and returns the answer, or None if this is no command.

        Raises `WireError` if it is not well formed, or not signed by the holder of the key.
        """
        if topic != self._topic or not payload:
            return None
        command = from_bytes(Command, payload, topic=topic, key=self._key)
        if command.device != self._device:
            raise WireError("a command is for another device.")
        if command.number >= MOST_NUMBER:
            raise WireError("the number of a command is too large.")
        if command.what not in WHATS:
            return self._answer(command, f"this device does not know how to {command.what[:40]!r}")
        if problem := self._problem_with(command):
            return self._answer(command, problem)
        if command.number > self._number:
            self._obey(command)
        return self._answer(command)

    def _problem_with(self, command: Command) -> str:
        """Returns why a command is not obeyed, though it is well formed; "" if it is."""
        now_ms = int(1000 * self._clock())
        if now_ms > SET_MS and command.number > now_ms + DAY_MS:
            return "the command is more than a day ahead of this device's clock"
        obeyed = "remove" if self.removed else "pause" if self._paused else "resume"
        repeated = (command.number, command.what) == (self._number, obeyed)
        if command.number <= self._number and not repeated:
            return "this device has obeyed a later command, or one of the same moment"
        return ""

    def _obey(self, command: Command) -> None:
        self._number = command.number
        reason = command.text[:LONGEST_TEXT] or "the operator has paused it"
        self._paused = reason if command.what == "pause" else ""
        self.removed = command.what == "remove"
        kept = {"number": self._number, "paused": self._paused, "removed": self.removed}
        try:
            replace_file(self._file, json.dumps(kept).encode())
        except OSError as error:
            raise CheckpointError(f"{self._file} cannot be written ({error.strerror}).") from None

    def _answer(self, command: Command, problem: str = "") -> Answer:
        return Answer(
            device=self._device,
            number=command.number,
            done=not problem,
            text=problem or f"{command.what}: done",
        )

    def _read(self) -> None:
        try:
            with self._file.open("rb") as file:
                kept = json.loads(file.read(LARGEST_FILE))
            match kept:
                case {"number": int(number), "paused": str(paused), "removed": bool(removed)} if (
                    number < MOST_NUMBER
                ):
                    self._number, self._paused, self.removed = number, paused, removed
                    return
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            pass
        raise CheckpointError(
            f"{self._file} is damaged; delete it, and give the operator's last command again."
        )
