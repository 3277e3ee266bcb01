"""A fleet on this machine: who is in it, how it learns, and the curves that come out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.embedded import EmbeddedBroker
from broker.mosquitto_process import Mosquitto, mosquitto_path
from broker.transport import Address
from toolkit.fleet.processes import Child, stopping

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Member:
    """One device: the bundle it trains, and which part of the data it holds."""

    name: str
    bundle: Path
    share: tuple[float, float]
    seed: int


@dataclass(frozen=True)
class Work:
    """What every device does."""

    task: str
    rounds: int
    steps: int  # mini-batches in a round


@dataclass(frozen=True)
class Point:
    """A device's scores on the test set after `round` rounds."""

    device: str
    round: int
    accuracy: float
    loss: float


Seen = Callable[[Point], None]


@contextlib.contextmanager
def local_broker(folder: Path, *, embedded: bool = False) -> Iterator[Address]:
    """mosquitto if it is installed, or else the embedded broker."""
    if embedded or mosquitto_path() is None:
        with EmbeddedBroker() as broker:
            yield broker.address
    else:
        with Mosquitto(folder) as broker:
            yield broker.address


def run_isolated(members: Sequence[Member], work: Work, folder: Path, seen: Seen) -> None:
    """Every device alone."""
    extra = ["--isolated", "--rounds", str(work.rounds)]
    children: list[Child] = []
    with stopping(children):
        children += [_device(member, work, folder, extra) for member in members]
        _watch(children, seen)


def run_fleet(
    members: Sequence[Member], work: Work, folder: Path, seen: Seen, *, broker: Address
) -> None:
    """All devices together, in synchronous rounds weighted by their amount of data."""
    link = ["--broker", str(broker), "--fleet", folder.name]
    bundles = dict.fromkeys(member.bundle for member in members)
    slices = [text for bundle in bundles for text in ("--slice", str(bundle / "shared.onnx"))]
    aggregator = [*link, *slices, "--rounds", str(work.rounds), "--quorum", str(len(members))]
    aggregator += ["--state", str(folder / "aggregator")]
    folder.mkdir(parents=True, exist_ok=True)
    children: list[Child] = []
    with stopping(children):
        log = folder / "aggregator.jsonl"
        children.append(Child("the aggregator", "broker.aggregator", aggregator, log))
        children += [_device(member, work, folder, link) for member in members]
        _watch(children, seen)


def _device(member: Member, work: Work, folder: Path, extra: Sequence[str]) -> Child:
    folder.mkdir(parents=True, exist_ok=True)
    start, stop = member.share
    arguments = ["--id", member.name, "--bundle", str(member.bundle), "--task", work.task]
    arguments += ["--share", f"{start}:{stop}", "--seed", str(member.seed)]
    arguments += ["--steps", str(work.steps), "--state", str(folder / member.name), *extra]
    return Child(member.name, "firmware_sim.device", arguments, folder / f"{member.name}.jsonl")


def _watch(children: Sequence[Child], seen: Seen) -> None:
    """Tells every evaluation as it happens, until all children have ended well."""
    while sum(_tell(child, seen) for child in children):
        time.sleep(_LOOK_SECONDS)


def _tell(child: Child, seen: Seen) -> bool:
    """Whether the child may say more."""
    running = child.running
    child.check()
    for event in child.events():
        if event["event"] == "evaluated":
            seen(Point(child.name, event["round"], event["accuracy"], event["loss"]))
    return running
