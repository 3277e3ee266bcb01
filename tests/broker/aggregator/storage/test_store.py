"""Whatever was committed is there once, after any cut, kill or damage; the rest is one sentence."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker.aggregator.storage.journal import BEGIN, RECORD_BYTES
from broker.aggregator.storage.store import PREVIOUS, SNAPSHOT, Identity, Store
from broker.durable import read_sealed, write_sealed
from broker.errors import StoreError
from broker.merging.coordinator import Entry, State
from broker.merging.optimizers import Adam
from broker.protocol.slice import Tensors

IDENTITY = Identity("greenhouse", "f" * 64, "sync", "gradient", "Adam")
RECORDS = [b"first", b"2", b"the third update", bytes(range(256))[:20], b"\0\0\0\0\0\0\0\0"]


def a_state(round: int = 7) -> State:
    rng = np.random.default_rng(0)
    shared: Tensors = {
        "stem/kernel": rng.normal(size=(3, 2)).astype(np.float32),
        "gain": np.asarray(np.pi, np.float32),
        "none": np.zeros((0, 4), np.float32),
        # A tensor may have a name that the snapshot uses itself.
        "ledger": np.array([-0.0, 1e-45, 3e38], np.float32),
    }
    slots = Adam(0.1).initial(shared)
    shared, slots = Adam(0.1).step(shared, {"gain": np.asarray(0.3, np.float32)}, slots)
    ledger = {"pi-1": Entry(6, "nonce", 40, ("gain", "stem/kernel")), "pi-2": Entry(2, "n", 1, ())}
    return State("run-1", round, shared, slots, ledger)


@contextmanager
def opened(folder: Path, identity: Identity = IDENTITY) -> Iterator[Store]:
    with closing(Store(folder, identity)) as store:
        yield store


def recovered(folder: Path) -> tuple[State | None, list[bytes]]:
    with opened(folder) as store:
        return store.load(), list(store.journal())


def refusal(folder: Path, identity: Identity = IDENTITY) -> str:
    with pytest.raises(StoreError) as caught, opened(folder, identity) as store:
        store.load()
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a snapshot, and all RECORDS in its journal."""
    with opened(tmp_path / "state") as store:
        store.snapshot(a_state())
        for record in RECORDS:
            store.append(record)
        store.commit()
    return tmp_path / "state"


@pytest.fixture
def journal(folder: Path) -> Path:
    return folder / "journal-1"


# --- what is stored comes back -------------------------------------------------------------------


def test_a_new_folder_is_empty(tmp_path: Path) -> None:
    assert recovered(tmp_path / "a" / "b") == (None, [])


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    state = a_state()
    with opened(tmp_path) as store:
        store.snapshot(state)
    again, updates = recovered(tmp_path)
    assert updates == []
    assert again is not None
    assert (again.run, again.round, again.ledger) == (state.run, state.round, state.ledger)
    for part, stored in ((state.shared, again.shared), (state.slots, again.slots)):
        assert stored.keys() == part.keys()
        for name, array in part.items():
            assert (stored[name].dtype, stored[name].shape) == (array.dtype, array.shape)
            assert stored[name].tobytes() == array.tobytes()
    assert int(again.slots["gain/t"][0]) == 1


def test_the_journal_comes_back_in_order(folder: Path) -> None:
    state, updates = recovered(folder)
    assert state is not None
    assert updates == RECORDS
    with opened(folder) as store:
        store.load()
        assert list(store.journal()) == RECORDS
        assert store.journal_bytes == sum(RECORD_BYTES + len(record) for record in RECORDS)
        store.append(b"later")
        store.commit()
    assert recovered(folder)[1] == [*RECORDS, b"later"]


def test_a_snapshot_begins_a_new_journal(folder: Path) -> None:
    with opened(folder) as store:
        store.load()
        list(store.journal())
        store.snapshot(a_state(round=8))
        assert store.journal_bytes == 0
        store.append(b"of round 8")
        store.commit()
    state, updates = recovered(folder)
    assert state is not None
    assert (state.round, updates) == (8, [b"of round 8"])
    names = {"lock", SNAPSHOT, "journal-2", PREVIOUS, "journal-1"}
    assert {path.name for path in folder.iterdir()} == names, "the state before is kept"


def test_what_was_not_committed_may_be_lost_but_closing_commits(folder: Path) -> None:
    with opened(folder) as store:
        store.load()
        list(store.journal())
        store.append(b"x" * 10)
        # Read beside it, as a power cut would find it: nothing of the record is promised yet.
        size = (folder / "journal-1").stat().st_size
        assert size <= BEGIN + store.journal_bytes
    assert recovered(folder)[1] == [*RECORDS, b"x" * 10]


# --- cuts and damage -----------------------------------------------------------------------------


def test_a_damaged_snapshot_is_one_sentence(folder: Path) -> None:
    path = folder / SNAPSHOT
    good = path.read_bytes()
    for index in range(0, len(good), 3):
        damaged = bytearray(good)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        assert refusal(folder).startswith(f"{path} cannot be read: ")
    for length in (0, 7, 8, 100, len(good) - 1):
        path.write_bytes(good[:length])
        assert refusal(folder).startswith(f"{path} cannot be read: ")
    path.unlink()
    path.mkdir()
    assert refusal(folder) == f"{path} cannot be read (Is a directory)."


@pytest.mark.parametrize("change", [{"format": 2}, {"ledger": None}, {"identity": {}}], ids=str)
def test_a_snapshot_of_another_version_is_refused(folder: Path, change: dict[str, object]) -> None:
    path = folder / SNAPSHOT
    stored = read_sealed(path, "snapshot")
    tensors = dict(stored.tensors)
    if "ledger" in change:
        del tensors["ledger"]
    write_sealed(path, "snapshot", {**stored.fields, **change}, tensors)
    assert refusal(folder) == f"{path} was written by another version."


def test_old_journals_are_harmless(folder: Path, journal: Path) -> None:
    """A kill between writing the snapshot and removing the journals that it makes old."""
    old = journal.read_bytes()
    with opened(folder) as store:
        store.load()
        list(store.journal())
        store.snapshot(a_state(round=8))
    journal.write_bytes(old)
    (folder / "journal-0").write_bytes(old)
    (folder / f".{SNAPSHOT}.new").write_bytes(b"cut of")
    state, updates = recovered(folder)
    assert state is not None
    assert (state.round, updates) == (8, [])
    with opened(folder) as store:
        store.load()
        assert list(store.journal()) == []
        store.append(b"new")
    assert recovered(folder)[1] == [b"new"]
    with opened(folder) as store:
        store.load()
        store.snapshot(a_state(round=9))
    names = {"lock", SNAPSHOT, "journal-3", PREVIOUS, "journal-2"}
    assert {path.name for path in folder.iterdir()} == names


# --- folders that cannot be used -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fleet", "orchard"),
        ("fingerprint", "0" * 64),
        ("mode", "async"),
        ("exchange", "delta"),
        ("optimizer", "SGD"),
    ],
)
def test_a_folder_of_another_fleet_is_refused(folder: Path, name: str, value: str) -> None:
    theirs = getattr(IDENTITY, name)
    assert refusal(folder, replace(IDENTITY, **{name: value})) == (
        f"{folder} belongs to something else: its {name} is {theirs!r}, not {value!r}; "
        "give another --state."
    )


def test_a_second_aggregator_is_refused(folder: Path) -> None:
    with opened(folder):
        assert refusal(folder) == f"another aggregator is using {folder}."
    assert recovered(folder)[1] == RECORDS, "after the first one has gone, it may"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    inside = tmp_path / "file" / "state"
    assert refusal(inside) == f"{inside} cannot be written (Not a directory)."
    assert refusal(tmp_path / "file") == f"{tmp_path / 'file'} cannot be written (File exists)."


def test_what_can_no_longer_be_written_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with opened(folder) as store:
        store.snapshot(a_state())
        (folder / f".{SNAPSHOT}.new").mkdir()
        with pytest.raises(StoreError) as caught:
            store.snapshot(a_state())
        assert str(caught.value) == f"{folder} cannot be written (Is a directory)."


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = Store(folder, IDENTITY)
    store.snapshot(a_state())
    store.append(b"x")
    name = folder / "journal-1"
    mine = [file for file in Path("/proc/self/fd").iterdir() if file.exists()]
    [journal] = [int(file.name) for file in mine if file.samefile(name)]
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), journal)
    for act in (store.commit, store.close):
        with pytest.raises(StoreError) as caught:
            act()
        assert str(caught.value) == f"{folder} cannot be written (No space left on device)."
    assert recovered(folder)[1] == [], "and the folder is free again"


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_read_only_folder_is_one_sentence(public: Path) -> None:
    folder = public / "state"
    with opened(folder) as store:
        store.snapshot(a_state())
    (folder / "lock").chmod(0o444)
    folder.chmod(0o555)
    with as_nobody():
        assert refusal(folder) == f"{folder} cannot be written (Permission denied)."
        assert refusal(public / "new") == f"{public / 'new'} cannot be written (Permission denied)."
    folder.chmod(0o755)
    (folder / "lock").chmod(0o666)
    (folder / SNAPSHOT).chmod(0o000)
    with as_nobody():
        assert refusal(folder) == f"{folder / SNAPSHOT} cannot be read (Permission denied)."


@contextmanager
def as_nobody() -> Iterator[None]:
    """Whom file modes bind; root is bound by none."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# --- killed at any moment ------------------------------------------------------------------------

# Writes updates 0, 1, 2, … and says which are acknowledged; each line that it reads starts it anew
# in a process of its own, so that Python and numpy are loaded once.
WRITER = """
import os, random, sys
from pathlib import Path
import numpy as np
from broker.merging.coordinator import Entry, State
from broker.aggregator.storage.store import Identity, Store

def work(folder, seed):
    rng = random.Random(seed)
    store = Store(Path(folder), Identity("fleet", "f", "async", "delta", "Delta"))
    state = store.load()
    if state is None:
        state = State("run", 0, {}, {"sum": np.zeros(1, np.int64)})
        store.snapshot(state)
    for update in store.journal():
        take(state, int(update.partition(b" ")[0]))
    while True:
        for _ in range(rng.randrange(1, 5)):
            store.append(b"%d %s" % (state.round, bytes(rng.randrange(3000))))
            take(state, state.round)
        store.commit()
        os.write(1, b"%d\\n" % (state.round - 1))
        if rng.random() < 0.3:
            store.snapshot(state)

def take(state, number):
    assert number == state.round
    state.slots = {"sum": state.slots["sum"] + number}
    state.round += 1
    state.ledger[f"d{number % 7}"] = Entry(number, str(number), 1, ())

for line in sys.stdin:
    folder, seed = line.split()
    child = os.fork()
    if child == 0:
        work(folder, int(seed))
    os.write(1, b"pid %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""


def test_everything_acknowledged_survives_a_kill_exactly_once(tmp_path: Path) -> None:
    folder, rng = tmp_path / "state", random.Random(0)
    identity = Identity("fleet", "f", "async", "delta", "Delta")
    acknowledged, seen = -1, set()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for seed in range(30):
            writer.stdin.write(f"{folder} {seed}\n")
            wanted = rng.randrange(0, 12)  # acknowledgements before the kill
            pid = said = 0
            for line in writer.stdout:
                match line.split():
                    case ["pid", number]:
                        pid = int(number)
                    case ["ended"]:
                        break
                    case [number]:
                        acknowledged = int(number)
                        said += 1
                if pid and said >= wanted:
                    for _ in range(rng.randrange(2000)):  # somewhere in the next update
                        zlib.crc32(b"x")
                    os.kill(pid, signal.SIGKILL)
                    pid, wanted = 0, 10**9
            with opened(folder, identity) as store:
                state = store.load()
                covered = state.round if state else 0
                journal = [int(update.partition(b" ")[0]) for update in store.journal()]
            found = [*range(covered), *journal]
            assert found == list(range(len(found))), "each once, and in order"
            assert len(found) > acknowledged, "nothing acknowledged is lost"
            if state is not None:
                assert int(state.slots["sum"][0]) == sum(range(covered))
                last = {f"d{n % 7}": Entry(n, str(n), 1, ()) for n in range(covered)}
                assert state.ledger == last
            seen.add(len(journal))
        writer.stdin.close()
    assert acknowledged > 100
    assert len(seen) > 3, "it was killed in different places"
