"""One fleet on one broker: a late joiner, and a kill of every role; is everything still there?

1. aggregator, devices a and b; c joins after the second round
2. a is killed and started again, then the aggregator, then the broker
3. all rounds are merged, all devices end, no update counted twice, nobody stalled the others
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.brokers.launchers import Launcher
from toolkit.fleet.processes import Child

ROUNDS = 24
LATENCY_MS = 100  # each way, so that a round takes long enough for somebody to join during it
DEADLINE = 30.0  # seconds; a round that needs it has stalled
PATIENCE = 900.0  # seconds for the whole scenario
SHARES = {"a": "0:0.3", "b": "0.3:0.6", "c": "0.6:1"}
BUNDLES = {"a": "weak", "b": "powerful", "c": "weak"}


class Failed(Exception):
    """What the scenario wanted did not happen."""


@dataclass
class Member:
    """A program of the fleet that can be killed and started again; its events add up."""

    name: str
    module: str
    arguments: Sequence[str]
    folder: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    child: Child | None = None
    starts: int = 0

    def start(self) -> None:
        self.starts += 1
        log = self.folder / f"{self.name}-{self.starts}.jsonl"
        self.child = Child(self.name, self.module, self.arguments, log)

    def kill(self) -> None:
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGKILL)
        self.look()
        self.child.stop()
        self.child = None

    def look(self) -> None:
        if self.child is not None:
            self.events += self.child.events()

    def said(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event]

    @property
    def ended(self) -> bool:
        return self.child is not None and not self.child.running


def run(
    launcher: Launcher, bundles: Mapping[str, Path], folder: Path, part_bytes: int
) -> Iterator[str]:
    """Yields what has been done; raises `Failed` where the fleet does not go on."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + PATIENCE
    members = _members(launcher, bundles, folder, part_bytes)
    aggregator, a, b, c = (members[name] for name in ("aggregator", "a", "b", "c"))

    def wait(what: str, reached: Any) -> None:
        while not reached():
            for member in members.values():
                member.look()
                if member.ended and member.child is not None:
                    member.child.check()
            if time.monotonic() > until:
                raise Failed(f"{what} did not happen within {PATIENCE:g} s")
            time.sleep(0.05)

    def merged() -> int:
        return max((e["round"] for e in aggregator.said("merged")), default=0)

    try:
        launcher.start()
        for member in (aggregator, a, b):
            member.start()
        wait("the second round", lambda: merged() >= 2)
        yield "rounds"
        c.start()
        wait("a round of the late joiner", lambda: c.said("trained"))
        yield "late joiner"
        now = merged()
        a.kill()
        a.start()
        wait("a round after a device was killed", lambda: merged() >= now + 2)
        yield "device killed"
        now = merged()
        aggregator.kill()
        aggregator.start()
        wait("a round after the aggregator was killed", lambda: merged() >= now + 2)
        yield "aggregator killed"
        now = merged()
        launcher.kill()
        launcher.start()
        wait("a round after the broker was killed", lambda: merged() >= now + 2)
        yield "broker killed"
        wait("the end", lambda: all(member.ended for member in members.values()))
        _check(members, merged())
        yield "everything once"
    finally:
        for member in members.values():
            if member.child is not None:
                member.child.stop()
        launcher.stop()


def _check(members: Mapping[str, Member], rounds: int) -> None:
    if rounds != ROUNDS:
        raise Failed(f"{rounds} rounds were merged, not {ROUNDS}")
    accepted = Counter((e["device"], e["round"]) for e in members["aggregator"].said("accepted"))
    if twice := [update for update, count in accepted.items() if count > 1]:
        raise Failed(f"counted twice: {twice}")
    for name in SHARES:
        if not members[name].said("finished"):
            raise Failed(f"{name} did not get the last θ_shared")


def _members(
    launcher: Launcher, bundles: Mapping[str, Path], folder: Path, part_bytes: int
) -> dict[str, Member]:
    addresses = launcher.addresses
    link = ["--fleet", "matrix", "--part-bytes", str(part_bytes)]
    slices = [text for path in bundles.values() for text in ("--slice", str(path / "shared.onnx"))]
    members = {
        "aggregator": Member(
            "aggregator",
            "broker.aggregator",
            [
                *(*slices, *link, "--broker", addresses[0]),
                *("--state", str(folder / "aggregator"), "--quorum", "2"),
                *("--rounds", str(ROUNDS), "--deadline", str(DEADLINE)),
            ],
            folder,
        )
    }
    for place, (name, share) in enumerate(SHARES.items(), 1):
        members[name] = Member(
            name,
            "firmware_sim.device",
            [
                *("--bundle", str(bundles[BUNDLES[name]]), "--task", "digits", "--share", share),
                *(*link, "--broker", addresses[place % len(addresses)], "--id", name),
                *("--state", str(folder / name), "--steps", "5", "--resend-seconds", "2"),
                *("--simulate-link", "--latency-ms", str(LATENCY_MS)),
            ],
            folder,
        )
    return members
