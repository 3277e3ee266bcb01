"""Examples that were stored are there once, within their bounds, also after kills."""

import math
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from firmware_sim.errors import LimitError, StoreError, WrongInput
from firmware_sim.normalisation import Learnt
from firmware_sim.store.size import LEAST_SLOTS, MOST_SLOTS, Size, size_for
from firmware_sim.store.slots import HELD_OUT, TRAINED, WAITING
from firmware_sim.store.spec import ExampleSpec
from firmware_sim.store.store import Store
from firmware_sim.tensor_spec import TensorSpec

SPEC = ExampleSpec(
    TensorSpec((3,), np.dtype(np.float32)), TensorSpec((), np.dtype(np.int32)), classes=4
)
ALONE = ExampleSpec(TensorSpec((3,), np.dtype(np.float32)), None)
X = np.array([1.0, 0.5, -1.0], np.float32)
SMALL = Size(slots=64, journal_pages=64, pages=100)


def numbers_in(store: Store, *parts: int) -> list[int]:
    """The first number of every example, which tells them apart."""
    return [int(x) for part in parts for b in store.examples(part, 10) for x in b.x[:, 0]]


def example(number: int) -> list[float]:
    return [float(number), 0.5, -1.0]


def test_examples_are_there_as_they_came_also_in_the_next_process(tmp_path: Path) -> None:
    store = Store(tmp_path, SPEC, SMALL, seed=5)
    keys = [store.add(example(n), n % 4) for n in range(30)]
    assert len(set(keys)) == 30
    store.close()
    again = Store(tmp_path, SPEC, SMALL, seed=99)  # the seed of the first one stays
    assert sorted(numbers_in(again, TRAINED, HELD_OUT)) == list(range(30))
    held_out = set(numbers_in(again, HELD_OUT))
    assert held_out == set(numbers_in(store_like(tmp_path / "b", 30, 5), HELD_OUT)) != set()
    for batch in again.held_out(4):
        assert batch.y.dtype == np.int32
        assert np.array_equal(batch.y, batch.x[:, 0].astype(int) % 4)
    drawn = again.sample(np.random.default_rng(0), 20)
    assert len(set(drawn.slots.tolist())) == 20
    assert not held_out & set(drawn.x[:, 0].astype(int).tolist())
    assert np.array_equal(drawn.y, drawn.x[:, 0].astype(int) % 4)


def store_like(folder: Path, count: int, seed: int) -> Store:
    store = Store(folder, SPEC, SMALL, seed=seed)
    for n in range(count):
        store.add(example(n), n % 4)
    return store


@pytest.mark.parametrize("keep", ["newest", "reservoir", "balanced", "hardest"])
def test_a_full_store_reuses_its_slots(tmp_path: Path, keep: str) -> None:
    store = Store(tmp_path, SPEC, SMALL, keep=keep)
    for n in range(300):
        store.add(example(n), 0 if n % 10 else 1, loss=float(n % 50))
    counts = store.counts()
    assert (counts.trained, counts.held_out, counts.waiting) == (42, 6, 0)
    assert counts.arrivals == 300 and counts.not_kept == 300 - 48
    found = numbers_in(store, TRAINED)
    assert len(set(found)) == 42
    if keep == "newest":
        assert min(found) > 240
    if keep == "balanced":
        assert 20 <= sum(n % 10 == 0 for n in found) <= 22
    if keep == "hardest":
        assert min(n % 50 for n in found) > 38
    assert found == numbers_in(Store(tmp_path, SPEC, SMALL, keep=keep), TRAINED)


def test_an_example_waits_for_its_label(tmp_path: Path) -> None:
    now = 0.0
    store = Store(tmp_path, SPEC, SMALL, label_seconds=10.0, clock=lambda: now)
    key = store.add(example(1))
    assert store.trained == 0 and numbers_in(store, WAITING) == [1]
    assert store.label(key, 3)
    assert numbers_in(store, WAITING) == []
    assert [b.y.tolist() for p in (TRAINED, HELD_OUT) for b in store.examples(p, 9)] == [[3]]
    assert store.label(key, 2), "a label can be corrected"
    assert [b.y.tolist() for p in (TRAINED, HELD_OUT) for b in store.examples(p, 9)] == [[2]]
    late = store.add(example(2))
    now = 11.0
    other = store.add(example(3))
    assert not store.label(late, 1)
    assert store.label(other, 1)
    assert store.counts().expired == 1
    with pytest.raises(WrongInput, match="the label 4 is not a class from 0 to 3"):
        store.label(other, 4)


def test_no_more_wait_than_may(tmp_path: Path) -> None:
    store = Store(tmp_path, SPEC, SMALL)
    keys = [store.add(example(n)) for n in range(50)]
    assert numbers_in(store, WAITING) == list(range(34, 50))
    assert not store.label(keys[33], 1)
    assert all(store.label(key, 1) for key in keys[34:])
    assert sorted(numbers_in(store, TRAINED, HELD_OUT)) == list(range(34, 50))


def test_an_example_with_a_key_is_there_once(tmp_path: Path) -> None:
    store = Store(tmp_path, SPEC, SMALL)
    assert store.add(example(1), 2, key="a.wav") == "a.wav"
    assert store.add(example(1), 2, key="a.wav") == "a.wav"
    assert store.add(example(2), key="b.wav") == "b.wav"
    assert store.add(example(2), 1, key="b.wav") == "b.wav"
    assert sorted(numbers_in(store, TRAINED, HELD_OUT)) == [1, 2]
    assert store.counts().repeated == 2
    assert store.example("b.wav") is not None and store.example("c.wav") is None


def test_an_autoencoder_needs_no_labels(tmp_path: Path) -> None:
    store = Store(tmp_path, ALONE, SMALL)
    for n in range(20):
        store.add(example(n))
    assert store.counts().waiting == 0
    assert sorted(numbers_in(store, TRAINED, HELD_OUT)) == list(range(20))
    key = store.add(example(20), "rattling")  # what a stream says beside it does not matter
    assert numbers_in(store, TRAINED, HELD_OUT).count(20) == 1
    with pytest.raises(WrongInput, match="have no labels"):
        store.label(key, 1)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ([1.0, 2.0], 0, r"the example is float64\[2\]; the bundle takes float32\[3\]"),
        ([1.0, float("nan"), 2.0], 0, "the example holds numbers that are not finite"),
        ([1.0, 2.0, 3.0], 1.5, "the label holds numbers that int32 cannot hold"),
        ([1.0, 2.0, 3.0], -1, "the label -1 is not a class from 0 to 3"),
        ("abc", 0, "the example is <U3"),
    ],
)
def test_what_is_no_example_is_refused_and_changes_nothing(
    tmp_path: Path, x: object, y: object, said: str
) -> None:
    store = Store(tmp_path, SPEC, SMALL)
    with pytest.raises(WrongInput, match=said):
        store.add(x, y)
    assert store.counts().arrivals == 0


def test_a_store_of_other_examples_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, SPEC, SMALL).close()
    with pytest.raises(StoreError, match=r"holds examples float32.* --erase-store"):
        Store(tmp_path, ALONE, SMALL)
    with pytest.raises(StoreError, match="can be kept as newest"):
        Store(tmp_path, SPEC, SMALL, keep="best")
    with pytest.raises(StoreError, match="one class each"):
        Store(tmp_path / "b", ALONE, SMALL, keep="balanced")
    (tmp_path / "examples.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path, SPEC, SMALL)


def test_a_smaller_store_forgets_what_it_has_no_room_for(tmp_path: Path) -> None:
    store_like(tmp_path, 60, 0).close()
    store = Store(tmp_path, SPEC, Size(32, 64, 100))
    assert len(numbers_in(store, TRAINED, HELD_OUT)) <= 32
    for n in range(100, 200):
        store.add(example(n), 1)
    assert store.counts().trained == 21 and min(numbers_in(store, TRAINED)) > 160


@pytest.mark.parametrize("example_bytes", [68, 3076, 9000])
def test_files_never_exceed_their_storage(tmp_path: Path, example_bytes: int) -> None:
    """Filled three times over by examples of which some wait, with long keys and losses."""
    wanted = ExampleSpec(TensorSpec((example_bytes,), np.dtype(np.uint8)), SPEC.y, classes=4)
    cap = LEAST_SLOTS * 3 * (example_bytes + 3000) + 500_000
    size = size_for(wanted.size, cap)
    assert LEAST_SLOTS <= size.slots <= MOST_SLOTS
    few = Size(min(size.slots, 150), 100, size.pages)
    store = Store(tmp_path, wanted, few, keep="reservoir")
    x, most = np.zeros(example_bytes, np.uint8), 0
    for n in range(3 * few.slots):
        key = store.add(x, None if n % 3 else n % 4, key=f"{n}" * 9)
        if n % 3 == 1:
            store.label(key, n % 4)
        if n % 50 == 0:
            most = max(most, taken(tmp_path))
    allowed = cap * few.slots / size.slots + 110 * 4120 + 200_000
    assert max(most, taken(tmp_path)) < allowed


def taken(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_too_little_storage_is_refused() -> None:
    with pytest.raises(LimitError, match="too little for 64 of 3076 bytes"):
        size_for(3076, 200_000)
    assert size_for(4, 2**30).slots == MOST_SLOTS


def test_two_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path, SPEC, SMALL)
    store.add(example(0), 0, key="first")
    failed: list[BaseException] = []

    def draw() -> None:
        rng = np.random.default_rng(0)
        try:
            for _ in range(200):
                if store.trained:
                    batch = store.sample(rng, 8)
                    assert np.array_equal(batch.y, batch.x[:, 0].astype(int) % 4)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    for n in range(1, 200):
        store.add(example(n), n % 4)
    thread.join()
    assert failed == []


WRITER = """
import sys
from pathlib import Path
from firmware_sim.store.size import Size
from firmware_sim.store.spec import ExampleSpec
from firmware_sim.store.store import Store
spec = ExampleSpec.from_json(sys.argv[2])
store = Store(Path(sys.argv[1]), spec, Size(4096, 64, 2000))
for n in range(store.counts().arrivals, 10**9):
    key = store.add([n, 0.5, -1.0], None if n % 2 else n % 4)
    if n % 2:
        store.label(key, n % 4)
    print(n, flush=True)
"""


def test_what_was_stored_is_there_once_after_every_kill(tmp_path: Path) -> None:
    """A writer is killed at random moments; each goes on where the store says that it is."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), SPEC.to_json()]
    rng, returned = random.Random(3), -1
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randrange(5, 200)):
                returned = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().splitlines()
        returned = int(rest[-1]) if rest else returned
        store = Store(tmp_path, SPEC, Size(4096, 64, 2000))
        found = numbers_in(store, TRAINED, HELD_OUT) + numbers_in(store, WAITING)
        store.close()
        assert sorted(found) in (list(range(returned + 1)), list(range(returned + 2)))


def test_a_loss_that_is_no_number_counts_as_unknown(tmp_path: Path) -> None:
    store = Store(tmp_path, SPEC, SMALL, keep="hardest")
    store.add(X, 1, loss=math.nan)
    store.add(X, 1, loss=-math.inf)
    waiting = store.add(X)
    assert store.label(waiting, 2, loss=math.nan)
    slots = np.concatenate(
        [b.slots for part in (TRAINED, HELD_OUT) for b in store.examples(part, 9)]
    )
    store.set_losses(slots, np.full(len(slots), np.nan, np.float32))
    store.close()
    again = Store(tmp_path, SPEC, SMALL, keep="hardest")
    assert again.counts().trained + again.counts().held_out == 3
    again.close()


@pytest.mark.parametrize("value", [3e38, -1e16, math.inf])
def test_numbers_that_no_network_can_compute_with_are_refused(tmp_path: Path, value: float) -> None:
    store = Store(tmp_path, SPEC, SMALL)
    with pytest.raises(
        WrongInput, match=r"the example holds numbers that are not finite, or beyond"
    ):
        store.add(X + np.float32(value), 0)
    assert store.counts().arrivals == 0
    store.close()


def test_a_key_like_the_stores_own_takes_nobodys_place(tmp_path: Path) -> None:
    store = Store(tmp_path, SPEC, SMALL)
    assert store.add(X, 0) == "#1"
    assert store.add(X, 0, "#1") == "#1"  # the same again
    with pytest.raises(WrongInput, match="the key '#4' is like the store's own"):
        store.add(X, 0, "#4")
    keys = [store.add(X, 0) for _ in range(5)]
    assert keys[2] == "#4"
    store.close()
    again = Store(tmp_path, SPEC, SMALL)
    assert again.counts().trained + again.counts().held_out == 6
    again.close()


def test_what_is_learnt_of_examples_is_kept_with_them(tmp_path: Path) -> None:
    """Each example once, also one that is not kept or comes again, and without any checkpoint."""
    rng = np.random.default_rng(0)
    rows = [X + rng.normal(100, 5, X.shape).astype(np.float32) for _ in range(30)]
    learnt = Learnt(X.shape[-1])
    store = Store(tmp_path, SPEC, SMALL, keep="reservoir", learnt=learnt)
    for number, row in enumerate(rows):
        store.add(row, 0, f"row {number}")
        store.add(row, 0, f"row {number}")
    store.close()
    again = Learnt(X.shape[-1])
    Store(tmp_path, SPEC, SMALL, keep="reservoir", learnt=again).close()
    every = np.stack(rows)
    wanted = (every - every.mean(0)) / every.std(0)
    np.testing.assert_allclose(again.apply(every), wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(again.apply(every), learnt.apply(every))
