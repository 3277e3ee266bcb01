"""The aggregator is killed again and again, and started again with the same command.

Three agents stay connected to mosquitto and never give up; one of them shares fewer tensors than
the others. The aggregator is a process: SIGKILL ends it at random moments, from its loading to its
publishing, and between two lives the disk is all that it has. Expected in the end: all rounds are
merged, every device was counted exactly once in each round (or merge) that it was told of, θ_shared
is what plain numpy makes of these updates, the run is the same throughout, and neither the wire
nor a device ever saw a round number go back.
"""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from broker.aggregator.storage.journal import JournalReader
from broker.protocol.messages import AggregatorState, Reason, Shared, Update, Verdict, from_bytes
from broker.protocol.slice import Slice
from broker.protocol.topics import Topics
from tests.harness.arithmetic import UNBOUNDED, assert_same, replay
from tests.harness.programs import Program, Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.slices import SliceFile
from tests.harness.watcher import Watcher

LONGEST_LIFE = 0.4  # seconds after the start is logged
SAMPLES = {"one": 10, "two": 25, "three": 40}
ROUNDS_PER_LIFE = 8  # that the devices may train while the aggregator lives, and the next one


class Fleet:
    """Three scripted devices, of which each trains as many rounds as it is allowed to."""

    def __init__(self, scripted: Callable[..., ScriptedDevice], shared: Slice) -> None:
        self.allowed = {name: threading.Semaphore(0) for name in SAMPLES}
        few = Slice.of(tensor for tensor in shared.tensors if tensor.name.startswith("first/"))
        self.devices = [
            scripted(
                name,
                few if name == "one" else shared,
                samples=samples,
                seed=seed,
                pace=self._pace(name, seed),
            )
            for seed, (name, samples) in enumerate(SAMPLES.items())
        ]

    def allow(self, rounds: int) -> None:
        for semaphore in self.allowed.values():
            semaphore.release(rounds)

    def _pace(self, name: str, seed: int) -> Callable[[], None]:
        """Unequal and uneven, so that a round is half full most of the time."""
        moments = random.Random(seed)

        def pace() -> None:
            assert self.allowed[name].acquire(timeout=60), f"{name} was never allowed to train"
            time.sleep(moments.uniform(0, 0.02))

        return pace


def live_and_die(
    start: Callable[[], Program], fleet: Fleet, lives: int, read: Callable[[], None]
) -> int:
    """Kills so many aggregators; answers how many of them found accepted updates in a journal."""
    moments = random.Random(lives)
    found, start_up = 0, 0.0
    for life in range(lives):
        fleet.allow(ROUNDS_PER_LIFE)
        began = time.monotonic()
        aggregator = start()
        if life % 5 == 4:  # before it has said anything: while it imports, loads or replays
            time.sleep(moments.uniform(0.6, 1.0) * start_up)
        else:
            aggregator.wait_for("start")
            start_up = time.monotonic() - began
            time.sleep(moments.uniform(0, LONGEST_LIFE))
        aggregator.kill()
        found += bool(aggregator.history("replayed"))
        read()
    return found


def check_the_wire(watcher: Watcher, topics: Topics) -> None:
    """One run, and θ_shared never goes back."""
    states = watcher.heard(AggregatorState, topics.aggregator_state)
    given = [
        *watcher.heard(Shared, topics.shared),
        *(s for name in SAMPLES for s in watcher.heard(Shared, topics.reply(name))),
    ]
    verdicts = watcher.heard(Verdict, topics.verdict("+"))
    runs = {s.run for s in states} | {s.run for s in given} | {v.run for v in verdicts}
    assert len(runs) == 1
    for topic in (topics.shared, *(topics.reply(name) for name in SAMPLES)):
        rounds = [shared.round for shared in watcher.heard(Shared, topic)]
        assert rounds == sorted(rounds), topic
    by_round: dict[int, set[bytes]] = {}
    for shared in given:
        tensors = b"".join(shared.tensors[name].tobytes() for name in sorted(shared.tensors))
        by_round.setdefault(shared.round, set()).add(tensors)
    assert all(len(values) == 1 for values in by_round.values())  # a round has one θ_shared
    assert {v.reason for v in verdicts if not v.accepted} <= {Reason.FINISHED}


def test_synchronous(
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    small_slice: SliceFile,
    topics: Topics,
) -> None:
    lives = 10
    rounds = (lives + 1) * ROUNDS_PER_LIFE
    options = ("--quorum", str(len(SAMPLES)), "--deadline", "60", "--rounds", str(rounds))

    def start() -> Program:
        return programs.aggregator("--slice", small_slice.path, *options, *UNBOUNDED)

    fleet = Fleet(scripted, small_slice.slice)
    replayed = live_and_die(start, fleet, lives, lambda: None)
    fleet.allow(ROUNDS_PER_LIFE)
    last = start()
    for device in fleet.devices:
        device.finish()
    assert last.exit_code() == 0
    final = watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)

    assert final.round == rounds
    made = [update for device in fleet.devices for update in device.updates]
    assert sorted((u.round, u.device) for u in made) == sorted(
        (number, name) for number in range(rounds) for name in SAMPLES
    )
    assert {u.nonce for u in watcher.accepted()} <= {u.nonce for u in made}
    for device in fleet.devices:
        assert [u.round for u in device.updates] == list(range(rounds))
    check_the_wire(watcher, topics)
    assert_same(final.tensors, replay(small_slice.start, made))
    assert replayed > 0  # otherwise the kills missed what they were to hit


def test_asynchronous(
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    small_slice: SliceFile,
    topics: Topics,
    tmp_path: Path,
) -> None:
    """After a kill the wire does not tell the order of merging, since a verdict may be lost.

    So the order is read from the journal of each life that was killed, and from the verdicts of
    the last one, which was not.
    """
    lives = 10
    merges = (lives + 1) * ROUNDS_PER_LIFE * len(SAMPLES)
    options = ("--mode", "async", "--merge", "samples", "--rounds", str(merges))
    order: list[Update] = []

    def start() -> Program:
        return programs.aggregator("--slice", small_slice.path, *options, *UNBOUNDED)

    def read() -> None:
        """A journal only grows, and what was in it once stays in it."""
        records = journal(tmp_path / "aggregator" / "journal-1")
        assert [u.nonce for u in records[: len(order)]] == [u.nonce for u in order]
        order[:] = records

    fleet = Fleet(scripted, small_slice.slice)
    replayed = live_and_die(start, fleet, lives, read)
    fleet.allow(ROUNDS_PER_LIFE + merges)
    last = start()
    for device in fleet.devices:
        device.finish()
    assert last.exit_code() == 0
    final = watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)

    assert final.round == merges
    known = {update.nonce for update in order}
    accepted = watcher.accepted()
    order += [update for update in accepted if update.nonce not in known]
    assert len(order) == len({update.nonce for update in order}) == merges
    made = {u.nonce: u.round for device in fleet.devices for u in device.updates}
    assert {u.nonce for u in accepted} <= {u.nonce for u in order} <= made.keys()
    for device in fleet.devices:
        rounds = [u.round for u in device.updates]
        assert rounds == sorted(set(rounds))
    check_the_wire(watcher, topics)
    theta, samples = dict(small_slice.start), {}
    for merge, update in enumerate(order):
        samples[update.device] = update.samples, update.tensors.keys()
        for name, change in update.tensors.items():
            total = sum(count for count, names in samples.values() if name in names)
            weight = (1 + merge - update.round) ** -0.5 * update.samples / total
            theta[name] = (theta[name] + weight * change.astype(np.float64)).astype(np.float32)
    assert_same(final.tensors, theta)
    assert replayed > lives / 2


def journal(path: Path) -> list[Update]:
    """Returns the whole records, of which the last ones may be half written."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        reader = JournalReader(file, path, generation=1)
        return [from_bytes(Update, update) for update in reader.records()]
