"""One byte of the aggregator's journal changes while it is down.

An asynchronous fleet of three devices over mosquitto; the devices stay there throughout. After
some dozens of acknowledged updates the aggregator is killed, and one byte in the middle of its
journal is changed, as a memory card does it. Expected: started again it refuses, names the file and
the byte, and touches nothing; `--check` says what is whole and whose updates are not; `--salvage`
goes back to the updates before the damage and keeps the damaged file; started once more, the same
devices go on by themselves in a new run, and θ_shared is in the end what plain numpy makes of the
updates that were kept and those that followed.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from broker.aggregator.storage.journal import BEGIN, RECORD_BYTES, JournalReader
from broker.protocol.messages import Shared, Update, from_bytes
from broker.protocol.topics import Topics
from tests.harness.arithmetic import UNBOUNDED, assert_same
from tests.harness.programs import Program, Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.slices import SliceFile
from tests.harness.waiting import wait_until
from tests.harness.watcher import Watcher

SAMPLES = {"one": 10, "two": 25, "three": 40}
BEFORE = 42  # updates that are acknowledged before the kill, at least
KEPT = 15  # of them, before the damage
MERGES = 60


def command(option: str, state: Path) -> subprocess.CompletedProcess[str]:
    """`python -m broker.aggregator OPTION --state DIR`, and nothing else."""
    line = [sys.executable, "-m", "broker.aggregator", option, "--state", str(state)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def read(path: Path) -> list[Update]:
    with path.open("rb") as file:
        return [from_bytes(Update, u) for u in JournalReader(file, path, 1).records()]


def test_a_flipped_byte_is_refused_checked_and_salvaged(
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    small_slice: SliceFile,
    topics: Topics,
    tmp_path: Path,
) -> None:
    may_train = {name: threading.Semaphore(BEFORE // len(SAMPLES)) for name in SAMPLES}

    def start() -> Program:
        options = ("--mode", "async", "--rounds", str(MERGES))
        return programs.aggregator("--slice", small_slice.path, *options, *UNBOUNDED)

    def pace(name: str) -> Callable[[], None]:
        def wait() -> None:
            assert may_train[name].acquire(timeout=120), f"{name} was never allowed to train"

        return wait

    first = start()
    devices = [
        scripted(name, small_slice.slice, samples=samples, seed=seed, pace=pace(name))
        for seed, (name, samples) in enumerate(SAMPLES.items())
    ]
    wait_until(lambda: len(watcher.accepted()) >= BEFORE, "the updates before the kill")
    first.kill()
    state = tmp_path / "aggregator"
    journal = state / "journal-1"
    whole = read(journal)
    assert len(whole) == BEFORE

    # One byte changes in the update after the first 15.
    data = bytearray(journal.read_bytes())
    place = BEGIN
    for _ in range(KEPT):
        place += RECORD_BYTES + int.from_bytes(data[place + 4 : place + 8], "little")
    data[place + RECORD_BYTES + 100] ^= 4
    journal.write_bytes(data)
    said = (
        f"{journal} is damaged at byte {place}; "
        f"`python -m broker.aggregator --check --state {state}` says what is whole."
    )

    refused = start()
    assert refused.exit_code() == 1
    assert refused.log.read_text().splitlines()[-1] == f"error: {said}"
    assert journal.read_bytes() == data, "nothing is cut off"

    checked = command("--check", state)
    assert checked.returncode == 1
    assert f"{said} Before that: {KEPT} whole updates" in checked.stdout
    for update in whole[KEPT + 1 :]:
        lost = f"the update of {update.device} that started from round {update.round}\n"
        assert f"acknowledged, and not whole any more: {lost}" in checked.stdout
    assert journal.read_bytes() == data

    salvaged = command("--salvage", state)
    assert salvaged.returncode == 0, salvaged.stderr
    assert f"and {KEPT} updates that were accepted after it" in salvaged.stdout
    assert salvaged.stdout.count("\nlost: the update of ") == BEFORE - KEPT - 1
    assert (state / "damaged-1" / "journal-1").read_bytes() == data
    assert command("--check", state).returncode == 0

    for semaphore in may_train.values():
        semaphore.release(MERGES)
    last = start()
    for device in devices:
        device.finish()
    assert last.exit_code() == 0
    final = watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)
    assert final.round == MERGES
    assert final.run != whole[0].run
    assert last.history("replayed")[0]["updates"] == KEPT
    followed = [update for update in watcher.accepted() if update.run == final.run]
    order = [*whole[:KEPT], *followed]
    assert len(order) == MERGES
    theta, samples = dict(small_slice.start), {}
    for merge, update in enumerate(order):
        samples[update.device] = update.samples
        weight = (1 + merge - update.round) ** -0.5 * update.samples / sum(samples.values())
        for name, change in update.tensors.items():
            theta[name] = (theta[name] + weight * change.astype(np.float64)).astype(np.float32)
    assert_same(final.tensors, theta)
