"""A journal drops only what was never acknowledged; every other damage is named by its place."""

import resource
import shutil
import struct
from collections.abc import Callable
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import pytest

from broker.aggregator.storage.journal import (
    BEGIN,
    RECORD_BYTES,
    Journal,
    JournalReader,
    create_journal,
)
from broker.errors import StoreError

COMMITTED = [b"first", b"2", b"the third update", bytes(range(256))[:20], b"\0\0\0\0\0\0\0\0"]
UNCOMMITTED = [b"never acknowledged", b"nor this"]
ENDS = list(accumulate((RECORD_BYTES + len(r) for r in [*COMMITTED, *UNCOMMITTED]), initial=BEGIN))
SYNCED = ENDS[len(COMMITTED)]
SLOTS = range(32, 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal as a kill leaves it: two records follow the last commit."""
    live, left = tmp_path / "live", tmp_path / "journal-1"
    with closing(Journal(live, create_journal(live, 1), BEGIN)) as journal:
        for record in COMMITTED:
            journal.append(record)
            journal.commit()
        for record in UNCOMMITTED:
            journal.append(record)
        journal._file.flush()
        shutil.copyfile(live, left)
    assert left.stat().st_size == ENDS[-1]
    return left


def read(path: Path) -> list[bytes]:
    """What an aggregator gets when it starts, or `StoreError`."""
    with path.open("rb") as file:
        reader = JournalReader(file, path, 1)
        found = list(reader.records())
        reader.check()
    return found


def reopened(path: Path) -> Journal:
    with path.open("rb") as file:
        reader = JournalReader(file, path, 1)
        list(reader.records())
        reader.check()
    return Journal(path, reader.header, reader.end)


def refusal(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        read(path)
    assert path.read_bytes() == before, "nothing is touched"
    return str(caught.value)


def damaged_at(path: Path, offset: int) -> str:
    return (
        f"{path} is damaged at byte {offset}; "
        f"`python -m broker.aggregator --check --state {path.parent}` says what is whole."
    )


def change(path: Path, whole: bytes, index: int, bit: int) -> None:
    data = bytearray(whole)
    data[index] ^= 1 << bit
    path.write_bytes(data)


def test_every_flipped_bit_of_an_acknowledged_record_is_named_by_its_place(path: Path) -> None:
    whole = path.read_bytes()
    for index in range(BEGIN, SYNCED):
        change(path, whole, index, index % 8)
        start = max(end for end in ENDS if end <= index)
        assert refusal(path) == damaged_at(path, start), index


def test_a_flipped_bit_behind_the_last_commit_drops_what_nobody_was_told_of(path: Path) -> None:
    whole = path.read_bytes()
    for index in range(SYNCED, len(whole)):
        change(path, whole, index, index % 8)
        kept = sum(end <= index for end in ENDS) - 1
        assert read(path) == [*COMMITTED, *UNCOMMITTED][:kept], index


def test_a_flipped_bit_of_the_header_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for index in range(SLOTS.start):
        change(path, whole, index, index % 8)
        said = f"{path} is damaged at byte 0, or was written by another version."
        assert refusal(path) == said, index


def test_of_two_slots_one_is_enough(path: Path) -> None:
    whole = path.read_bytes()
    for index in SLOTS:
        change(path, whole, index, index % 8)
        assert read(path) == [*COMMITTED, *UNCOMMITTED]
        with closing(reopened(path)) as journal:
            journal.append(b"more")
        assert read(path) == [*COMMITTED, *UNCOMMITTED, b"more"]
    path.write_bytes(whole[:32] + bytes(32) + whole[64:])
    assert refusal(path) == damaged_at(path, 32), "no power cut tears both"


def test_a_stale_slot_protects_all_but_the_last_commit(path: Path) -> None:
    """The power went before the last slot reached the disk: the commit before it is stated."""
    whole = path.read_bytes()
    newest = max((32, 48), key=lambda place: struct.unpack_from("<Q", whole, place))
    torn = whole[:newest] + bytes(7) + whole[newest + 7 :]
    path.write_bytes(torn)
    assert read(path) == [*COMMITTED, *UNCOMMITTED]
    change(path, torn, ENDS[3] + 20, 0)
    assert refusal(path) == damaged_at(path, ENDS[3])


def test_cut_anywhere_it_is_damaged_or_keeps_its_whole_records(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = sum(end <= length for end in ENDS) - 1
        if length < BEGIN:
            assert "is damaged at byte 0" in refusal(path)
        elif length < SYNCED:
            assert refusal(path) == damaged_at(path, ENDS[kept])
        else:
            assert read(path) == [*COMMITTED, *UNCOMMITTED][:kept]


@pytest.mark.parametrize("tail", [bytes(1), bytes(16), bytes(4096), b"\xf5upd", b"\xff" * 100])
def test_what_a_power_cut_leaves_behind_the_end_is_removed(path: Path, tail: bytes) -> None:
    path.write_bytes(path.read_bytes()[:SYNCED] + tail)
    with closing(reopened(path)) as journal:
        assert path.stat().st_size == SYNCED
        journal.append(b"after")
    assert read(path) == [*COMMITTED, b"after"]


def test_a_record_counts_only_in_its_place_and_its_file(path: Path, tmp_path: Path) -> None:
    """Blocks of a removed journal may come back, and a device may send what looks like a record."""
    whole = path.read_bytes()
    path.write_bytes(whole[:SYNCED] + whole[BEGIN:])
    assert read(path) == COMMITTED
    other = tmp_path / "other"
    create_journal(other, 1)
    other.write_bytes(other.read_bytes() + whole[BEGIN:])
    assert read(other) == []


def test_a_damaged_length_takes_no_memory(path: Path) -> None:
    with path.open("rb") as file:
        header = JournalReader(file, path, 1).header
    path.write_bytes(path.read_bytes()[:SYNCED] + header.record(SYNCED, 2**32 - 1, 0) + b"short")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, hard))
    try:
        assert read(path) == COMMITTED
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_whole_records_behind_a_damage_can_be_listed(path: Path) -> None:
    whole = path.read_bytes()
    for index in (ENDS[1] + 6, ENDS[1] + RECORD_BYTES):  # a length, and an update
        change(path, whole, index, 3)
        with path.open("rb") as file:
            reader = JournalReader(file, path, 1)
            assert list(reader.records()) == COMMITTED[:1]
            later = zip(ENDS[2:], [*COMMITTED[2:], *UNCOMMITTED], strict=False)
            assert list(reader.later_records()) == list(later)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda data: struct.pack("<II", 5, 0) + b"first", "is damaged at byte 0, or was written"),
        (lambda data: b"", "is damaged at byte 0, or was written by another version."),
        (lambda data: bytes(4096), "is damaged at byte 0, or was written by another version."),
    ],
    ids=["the format before", "empty", "zeros"],
)
def test_what_is_no_journal_is_refused(
    path: Path, other: Callable[[bytes], bytes], said: str
) -> None:
    path.write_bytes(other(path.read_bytes()))
    assert said in refusal(path)


def test_a_journal_of_another_snapshot_is_refused(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(StoreError, match="is damaged at byte 0;"):
        JournalReader(file, path, 2)


def test_one_fsync_for_a_commit_and_none_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    path = tmp_path / "journal-1"
    with closing(Journal(path, create_journal(path, 1), BEGIN)) as journal:
        monkeypatch.setattr("os.fsync", synced.append)
        for number in range(1, 5):
            journal.append(b"x")
            journal.append(b"y")
            journal.commit()
            journal.commit()
            assert len(synced) == number
