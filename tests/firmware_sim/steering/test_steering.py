"""A device obeys its operator, once, and over restarts; nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.errors import Unsigned, WireError
from broker.protocol.messages import Command, to_bytes
from broker.protocol.topics import Topics
from firmware_sim.errors import CheckpointError, FleetRefused
from firmware_sim.steering.steering import DAY_MS, FILE, Steering

TOPICS = Topics("orchard")
TOPIC = TOPICS.command("pi-1")
HUGE = b'{"number": %d, "paused": "", "removed": false}' % (2**53)


def command(what: str, number: int, **changes: Any) -> bytes:
    signer = changes.pop("signer", None)
    topic = changes.pop("topic", TOPIC)
    fields = {"device": "pi-1", "text": ""} | changes
    return to_bytes(Command(what=what, number=number, **fields), topic=topic, signer=signer)


def steering(folder: Path, key: bytes | None = None) -> Steering:
    return Steering("pi-1", folder, TOPICS, key=key)


def test_pause_and_resume_are_kept_over_restarts(tmp_path: Path) -> None:
    ours = steering(tmp_path)
    assert ours() is None
    answer = ours.take(TOPIC, command("pause", 5, text="the fan is being changed"))
    assert answer is not None
    assert (answer.device, answer.number, answer.done) == ("pi-1", 5, True)
    for again in (ours, steering(tmp_path)):
        waiting = again()
        assert waiting is not None
        assert (waiting.cause, waiting.text) == ("operator", "the fan is being changed")
    ours.take(TOPIC, command("resume", 6))
    assert ours() is None
    assert steering(tmp_path)() is None


def test_what_was_obeyed_is_answered_again_and_changes_nothing(tmp_path: Path) -> None:
    ours = steering(tmp_path)
    for number, what in ((5, "pause"), (6, "resume")):
        ours.take(TOPIC, command(what, number))
        for again in (ours, steering(tmp_path)):
            answer = again.take(TOPIC, command(what, number))
            assert answer is not None
            assert (answer.number, answer.done) == (number, True)
            assert (again() is None) == (what == "resume")


def test_what_is_older_is_refused(tmp_path: Path) -> None:
    ours = steering(tmp_path)
    ours.take(TOPIC, command("pause", 5))
    ours.take(TOPIC, command("resume", 6))
    for number in (-1, 5, 6):
        for again in (ours, steering(tmp_path)):
            answer = again.take(TOPIC, command("pause", number))
            assert answer is not None
            assert (answer.number, answer.done) == (number, False)
            assert "has obeyed a later command" in answer.text
            assert again() is None


def test_a_number_from_the_future_is_refused(tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000
    ours = Steering("pi-1", tmp_path, TOPICS, key=None, clock=lambda: now_ms / 1000)
    answer = ours.take(TOPIC, command("pause", now_ms + DAY_MS + 1))
    assert answer is not None
    assert (answer.done, "ahead of this device's clock" in answer.text) == (False, True)
    for number in (2**53, 2**200, 10**4200):
        with pytest.raises(WireError, match=r"too large"):
            ours.take(TOPIC, command("pause", number))
    assert ours() is None
    ours.take(TOPIC, command("pause", now_ms + DAY_MS))
    assert steering(tmp_path)() is not None
    unset = Steering("pi-1", tmp_path, TOPICS, key=None, clock=lambda: 60.0)
    unset.take(TOPIC, command("resume", now_ms + DAY_MS + 1))
    assert unset() is None  # the clock of a device that was never set refuses nothing


def test_one_that_was_removed_does_not_start_again(tmp_path: Path) -> None:
    ours = steering(tmp_path)
    ours.check()
    answer = ours.take(TOPIC, command("remove", 1))
    assert answer is not None
    assert answer.done
    for again in (ours, steering(tmp_path)):
        with pytest.raises(FleetRefused, match=r"the operator has removed this device"):
            again.check()
    (tmp_path / FILE).unlink()
    steering(tmp_path).check()


def test_only_the_holder_of_the_key_commands(tmp_path: Path) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    ours = steering(tmp_path, key.public_key().public_bytes_raw())
    elsewhere = TOPICS.command("pi-2")
    for forged in (
        command("pause", 9),
        command("pause", 9, signer=other),
        command("pause", 9, signer=key, topic=elsewhere),
    ):
        with pytest.raises(Unsigned):
            ours.take(TOPIC, forged)
    assert ours() is None
    ours.take(TOPIC, command("pause", 9, signer=key))
    assert ours() is not None


def test_what_is_no_command_of_this_device(tmp_path: Path) -> None:
    ours = steering(tmp_path)
    assert ours.take(TOPIC, b"") is None  # the operator has cleared it
    assert ours.take(TOPICS.shared, command("pause", 1)) is None
    with pytest.raises(WireError):
        ours.take(TOPIC, b"pause")
    with pytest.raises(WireError, match=r"another device"):
        ours.take(TOPIC, command("pause", 1, device="pi-2"))
    answer = ours.take(TOPIC, command("dance", 1))
    assert answer is not None
    assert (answer.done, "does not know" in answer.text) == (False, True)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("damaged", [b"", b"{}", b'{"number": "x"}', b"\xff" * 9000, HUGE])
def test_a_damaged_file_is_not_taken_for_a_permission(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / FILE).write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"is damaged"):
        steering(tmp_path)
