"""A device's checkpoint: bit for bit, its own, and one sentence for every file that is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.aggregator.storage.store import SNAPSHOT
from broker.durable import read_sealed, write_sealed
from firmware_sim.errors import CheckpointError
from firmware_sim.training.checkpoint import FILE, FORMAT, Checkpoint, Checkpoints, claim_state

LEARNER = {
    "model/conv/kernel": np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32),
    "model/optimizer/step": np.asarray(7.0, np.float32),
    "model/empty": np.zeros((0,), np.float32),
    "task/position": np.asarray(41, np.int64),
    "task/data": np.frombuffer(bytes(range(32)), np.uint8),
}
BASE = {"conv/kernel": np.asarray([[-0.0, 1e-45], [3e38, np.pi]], np.float32)}


def checkpoints(folder: Path, *, device: str = "pi-1", bundle: str = "b" * 64) -> Checkpoints:
    return Checkpoints(folder, device=device, bundle=bundle)


def a_checkpoint(**changes: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "run": "run-1",
        "round": 3,
        "steps_done": 41,
        "learner": LEARNER,
    } | changes
    return Checkpoint(**values)


def refusal(folder: Path, **owner: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        checkpoints(folder, **owner).load()
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
        assert array.tobytes() == other[name].tobytes()


def test_a_new_folder_has_none(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "a" / "b").load() is None
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize(
    "changes",
    [{}, {"base": BASE}, {"outbox": b"\0an update\xff"}, {"base": BASE, "outbox": b"x", "run": ""}],
    ids=["between rounds", "in a round", "after a round", "everything"],
)
def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved = a_checkpoint(**changes)
    checkpoints(tmp_path).save(saved)
    found = checkpoints(tmp_path).load()
    assert found is not None
    assert (found.run, found.round, found.steps_done) == (saved.run, saved.round, saved.steps_done)
    assert found.outbox == saved.outbox
    assert_same(found.learner, saved.learner)
    assert_same(found.base, saved.base)


def test_the_newest_one_is_kept_alone(tmp_path: Path) -> None:
    for round in range(3):
        checkpoints(tmp_path).save(a_checkpoint(round=round, outbox=bytes(1000 >> round)))
    found = checkpoints(tmp_path).load()
    assert found is not None
    assert (found.round, len(found.outbox)) == (2, 250)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("what", "owner"), [("device", {"device": "pi-2"}), ("bundle", {"bundle": "c" * 64})]
)
def test_anothers_checkpoint_is_refused(tmp_path: Path, what: str, owner: dict[str, str]) -> None:
    checkpoints(tmp_path).save(a_checkpoint())
    path = tmp_path / FILE
    assert refusal(tmp_path, **owner) == f"{path} belongs to another {what}; give another --state."


def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(a_checkpoint(base=BASE, outbox=b"update"))
    path = tmp_path / FILE
    good = path.read_bytes()
    for index in range(0, len(good), 5):
        damaged = bytearray(good)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        assert refusal(tmp_path).startswith(f"{path} cannot be read: ")
    path.write_bytes(good[: len(good) // 2])
    assert refusal(tmp_path).startswith(f"{path} cannot be read: ")
    path.unlink()
    path.mkdir()
    assert refusal(tmp_path) == f"{path} cannot be read (Is a directory)."


def test_what_rounding_kept_is_in_every_checkpoint(tmp_path: Path) -> None:
    ours = checkpoints(tmp_path)
    ours.residual.run, ours.residual.tensors = "run-1", dict(BASE)
    ours.save(a_checkpoint(run="run-2"))
    # The aggregator has started a new run; this was not saved yet.
    ours.residual.run, ours.residual.tensors = "run-2", {}
    again = checkpoints(tmp_path)
    found = again.residual
    found.run, found.tensors = "run-0", {"other": np.ones(1, np.float32)}
    assert again.load() is not None
    assert found.run == "run-1"
    assert_same(found.tensors, BASE)
    assert all(value.flags.owndata for value in found.tensors.values()), "the file is let go"
    ours.save(a_checkpoint(run="run-2"))
    again.load()
    assert (found.run, found.tensors) == ("run-2", {})


def test_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    checkpoints(tmp_path).save(a_checkpoint())
    stored = read_sealed(path, "checkpoint")
    for fields in (
        {**stored.fields, "format": FORMAT - 1},
        {k: v for k, v in stored.fields.items() if k != "steps_done"},
        {**stored.fields, "round": "3"},
        {**stored.fields, "round": True},
        {**stored.fields, "steps_done": -1},
        {**stored.fields, "run": None},
        {**stored.fields, "residual_run": 7},
    ):
        write_sealed(path, "checkpoint", fields, stored.tensors)
        assert refusal(tmp_path) == f"{path} was written by another version."
    write_sealed(path, "snapshot", stored.fields, stored.tensors)
    assert refusal(tmp_path) == f"{path} cannot be read: it holds a 'snapshot', not a 'checkpoint'."
    assert SNAPSHOT != FILE, "an aggregator and a device may share a folder"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    inside = tmp_path / "file" / "state"
    with pytest.raises(CheckpointError) as caught:
        checkpoints(inside)
    assert str(caught.value) == f"{inside} cannot be written (Not a directory)."
    ours = checkpoints(tmp_path / "state")
    (tmp_path / "state").rmdir()
    with pytest.raises(CheckpointError) as caught:
        ours.save(a_checkpoint())
    path = tmp_path / "state" / FILE
    assert str(caught.value) == f"{path} cannot be written (No such file or directory)."


def test_a_state_folder_belongs_to_one_device_at_a_time(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with claim_state(state), pytest.raises(CheckpointError) as caught:
        claim_state(state)
    assert str(caught.value) == f"another device is using {state}."
    claim_state(state).close()


def test_a_state_folder_that_cannot_be_claimed_is_one_sentence(tmp_path: Path) -> None:
    """root may write anywhere, so a folder lies where the lock would be."""
    (tmp_path / "state" / "lock").mkdir(parents=True)
    (tmp_path / "file").touch()
    for state, reason in (
        (tmp_path / "state", "Is a directory"),
        (tmp_path / "file" / "state", "Not a directory"),
    ):
        with pytest.raises(CheckpointError) as caught:
            claim_state(state)
        assert str(caught.value) == f"{state} cannot be written ({reason})."
