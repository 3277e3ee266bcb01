"""Which aggregator of a fleet is the newest, and what a state on the broker means to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.aggregator.epochs import MOST, Epochs, Standing
from broker.errors import StoreError
from broker.protocol.messages import AggregatorState


def state(epoch: int, instance: str, status: str = "online") -> AggregatorState:
    return AggregatorState(status=status, run="run", epoch=epoch, instance=instance)


def test_every_start_takes_a_higher_epoch(tmp_path: Path) -> None:
    assert [Epochs(tmp_path, name).epoch for name in "abc"] == [1, 2, 3]


def test_a_damaged_number_is_raised_again(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("what?")
    assert Epochs(tmp_path, "a").epoch == 1


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be written \(.*\)\.$"):
        Epochs(tmp_path / "missing", "a")


def test_a_newcomer_goes_above_what_it_finds(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path, "new")
    assert epochs.judge(state(7, "old"), signed=False) is Standing.BEHIND
    epochs.raise_above(7)
    assert epochs.epoch == 8
    assert epochs.judge(state(8, "new"), signed=False) is Standing.OWN
    assert Epochs(tmp_path, "next").epoch == 9  # it was written down


def standing(tmp_path: Path, *, relinked: bool = False) -> Epochs:
    """One that has reigned in epoch 1."""
    epochs = Epochs(tmp_path, "m")
    assert epochs.judge(state(1, "m"), signed=False) is Standing.OWN
    if relinked:
        epochs.link_lost()
    return epochs


def test_a_signed_newer_state_supersedes(tmp_path: Path) -> None:
    assert standing(tmp_path).judge(state(2, "x"), signed=True) is Standing.SUPERSEDED


def test_an_unsigned_one_counts_only_after_the_link_was_lost(tmp_path: Path) -> None:
    epochs = standing(tmp_path)
    assert epochs.judge(state(2, "x"), signed=False) is Standing.OTHER
    epochs.link_lost()
    assert epochs.judge(state(2, "x"), signed=False) is Standing.SUPERSEDED
    assert epochs.judge(state(1, "m"), signed=False) is Standing.OWN
    assert epochs.judge(state(2, "x"), signed=False) is Standing.OTHER  # our own was seen since


@pytest.mark.parametrize(
    "seen",
    [
        None,
        state(1, "m", "offline"),
        state(0, "old"),
        state(0, "old", "offline"),
        state(MOST + 1, "x"),
        state(1, "a"),
    ],
    ids=[
        "garbage",
        "our own will",
        "older",
        "an old will",
        "beyond all epochs",
        "a tie that we win",
    ],
)
def test_everything_else_is_written_over(tmp_path: Path, seen: AggregatorState | None) -> None:
    assert standing(tmp_path, relinked=True).judge(seen, signed=True) is Standing.OTHER


def test_of_two_with_one_epoch_one_stays(tmp_path: Path) -> None:
    one, other = state(1, "a"), state(1, "m")
    assert standing(tmp_path).judge(one, signed=True) is Standing.OTHER
    epochs = Epochs(tmp_path / ".." / tmp_path.name, "a")
    epochs.epoch = 1
    assert epochs.judge(one, signed=True) is Standing.OWN
    assert epochs.judge(other, signed=True) is Standing.SUPERSEDED
