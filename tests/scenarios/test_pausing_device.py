"""A device pauses because its profile says so; the others go on without it.

One device is a real process whose profile names a file: while that exists, it pauses. The other is
an agent in a thread. The deadline is longer than any test, so a round that waited for the paused
device would never close. Expected: its retained state says that it pauses and why, rounds close
without it, Ctrl-C ends the pause at once with everything kept, and when the file is gone the same
command takes part again.
"""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Semaphore

import pytest

from broker.aggregator.answers import LONGEST_LOGGED
from broker.protocol.messages import DeviceState, Shared
from broker.protocol.topics import Topics
from firmware_sim.bundle.reader import MANIFEST, SLICE, Bundle, open_bundle
from tests.harness.arithmetic import UNBOUNDED
from tests.harness.metrics import read_metrics
from tests.harness.programs import Program, Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.waiting import wait_until
from tests.harness.watcher import Watcher

pytestmark = pytest.mark.xdist_group("fleet")


def test_rounds_go_on_without_a_device_that_pauses(
    digits_bundle: Bundle,
    tmp_path: Path,
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    topics: Topics,
) -> None:
    pause = tmp_path / "pause"
    bundle = pausing(digits_bundle, tmp_path / "bundle", pause)
    options = ("--quorum", "1", "--deadline", "3600", "--rounds", "6")
    aggregator = programs.aggregator("--slice", bundle.folder / SLICE, *options, *UNBOUNDED)
    pauses = programs.device("pauses", bundle, "--steps", "300")
    pauses.wait_for("evaluated", round=1)
    pause.touch()
    waiting = pauses.wait_for("waiting", cause="file")
    assert waiting["reason"] == f"{pause} exists"
    state = watcher.wait_for(DeviceState, topics.state("pauses"), lambda s: bool(s.waiting))
    assert (state.online, state.waiting) == (True, f"file: {pause} exists")
    aggregator.wait_for("waiting", device="pauses", reason=state.waiting[:LONGEST_LOGGED])

    may_train = Semaphore(0)
    other = scripted("other", bundle.manifest.shared, samples=100, seed=1, pace=may_train.acquire)
    first = len(aggregator.history("merged"))
    may_train.release(2)
    wait_until(lambda: len(aggregator.history("merged")) >= first + 2, "two rounds")
    assert [e["devices"] for e in aggregator.history("merged")[first:]] == [1, 1]

    begin = time.monotonic()
    pauses.send(signal.SIGINT)
    assert pauses.exit_code() == 130
    assert time.monotonic() - begin < 30
    watcher.wait_for(DeviceState, topics.state("pauses"), lambda s: not s.online)
    again = programs.device("pauses", bundle, "--steps", "300")
    again.wait_for("waiting", cause="file")
    pause.unlink()
    assert again.wait_for("continued", cause="file")["seconds"] >= 1
    joins = ("at its start", "at its second start", "after its pause")
    wait_until(lambda: joined(aggregator) == len(joins), "the aggregator knows that it goes on")
    may_train.release(6)
    other.finish()
    assert [again.exit_code(), aggregator.exit_code()] == [0, 0]
    watcher.wait_for(Shared, topics.shared, lambda s: s.last)
    mine = [u.round for u in watcher.accepted() if u.device == "pauses"]
    assert mine[0] == 0
    assert max(mine) >= first + 2, "it takes part again"
    metrics = [p.payload for p in watcher.packets if p.topic == topics.metrics("pauses")]
    assert read_metrics(metrics[-1])['device_waiting_seconds{cause="file"}'] >= 1


def joined(aggregator: Program) -> int:
    return sum(event["device"] == "pauses" for event in aggregator.history("joined"))


def pausing(bundle: Bundle, folder: Path, file: Path) -> Bundle:
    """The bundle as a profile with that file would have made it."""
    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["profile"]["pause_file"] = str(file)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return open_bundle(folder)
