"""A power cut at any moment leaves the last checkpoint that was saved, or the one being saved.

A device sends an update only after `save` has returned, so the update that it may have sent is in
whatever it finds when it starts again (tests/harness/power_cuts.py says what it may find).
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from firmware_sim.training.checkpoint import Checkpoint, Checkpoints, claim_state
from tests.harness.disk_recorder import Recorder
from tests.harness.power_cuts import Disk, Known, lay_out, opened_files

SAVED = 3


def checkpoint(number: int) -> Checkpoint:
    learner = {"model/kernel": np.full(5 + number, number, np.float32)}
    return Checkpoint(
        run="run-1", round=number, steps_done=7, learner=learner, outbox=b"update %d" % number
    )


def test_every_state_that_a_power_cut_could_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "disk")
    recorder.root.mkdir()
    folder = recorder.root / "states" / "pi-1"
    with monkeypatch.context() as hooks:
        recorder.begin(hooks)
        with claim_state(folder):
            ours = Checkpoints(folder, device="pi-1", bundle="b")
            for number in range(SAVED):
                recorder.note(("saving", number))
                ours.save(checkpoint(number))
                recorder.note(("saved", number))
    monkeypatch.setattr("os.fsync", lambda _: None)
    disk = Disk()
    known: Known[int] = Known(measures=lambda path: False)
    states, found_there = 0, set()
    for event in recorder.events:
        disk.add(event)
        least = max((number for what, number in disk.notes if what == "saved"), default=-1)
        most = max((number for what, number in disk.notes if what == "saving"), default=-1)
        for files in disk.states():
            states += 1
            found = known.result(files)
            if found is None:
                lay_out(files, tmp_path / "cut")
                with opened_files(tmp_path / "cut") as opened:
                    found = start_again(tmp_path / "cut" / "states" / "pi-1")
                known.learn(files, opened, found)
                shutil.rmtree(tmp_path / "cut")
            assert least <= found <= most
            found_there.add((least, found))
    assert states > 100
    assert found_there == {(-1, -1), (-1, 0), (0, 0), (0, 1), (1, 1), (1, 2), (2, 2)}


def start_again(folder: Path) -> int:
    """Returns the number of the checkpoint that a device finds, or -1; then saves the next."""
    with claim_state(folder):
        ours = Checkpoints(folder, device="pi-1", bundle="b")
        found = ours.load()
        number = -1 if found is None else found.round
        if found is not None:
            assert found.outbox == b"update %d" % number
            assert np.array_equal(found.learner["model/kernel"], np.full(5 + number, number))
        ours.save(checkpoint(number + 1))
        again = Checkpoints(folder, device="pi-1", bundle="b").load()
        assert again is not None
        assert again.round == number + 1
    return number
