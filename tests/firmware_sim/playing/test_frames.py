"""Frames come back as they were stored, from memory or disk, and the oldest go when they must."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.playing.arena import CHUNK, Arena, DiskArena, MemoryArena
from firmware_sim.playing.frame_codec import CHAIN, MOST_PIXELS
from firmware_sim.playing.frames import LEAST_CHUNKS, STACK, Frames

Pixels = npt.NDArray[np.uint8]
SHAPE = (30, 40)


class Counting(MemoryArena):
    """Notes the records that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[bytes] = []

    def write(self, position: int, record: bytes) -> None:
        self.records.append(record)
        super().write(position, record)


@pytest.fixture(params=["memory", "disk"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return MemoryArena() if request.param == "memory" else DiskArena(tmp_path, LEAST_CHUNKS)


def film(rng: np.random.Generator, length: int) -> Iterator[Pixels]:
    """Frames that stay, change a little, change much, scroll, or are new altogether."""
    frame = np.zeros(SHAPE, np.uint8)
    for _ in range(length):
        frame = frame.copy()
        match rng.integers(9):
            case 0:
                frame = rng.integers(0, 256, SHAPE, dtype=np.uint8)
            case 1:
                frame[:20] += 1
            case 8:
                frame[3:] = frame[:-3].copy()
            case 2 | 3 | 4 | 5:
                frame[rng.integers(30, size=9), rng.integers(40, size=9)] += 7
        yield frame


def check(frames: Frames, stored: list[Pixels], newest: list[int]) -> None:
    stacks = frames.stacks(np.array(newest), np.empty((2, len(newest), 1200), np.uint32))
    for shown, end in zip(stacks, (0, 1), strict=True):
        assert (shown.shape, shown.dtype) == ((len(newest), 1200, STACK), np.dtype(np.uint8))
        for sample, number in enumerate(newest):
            past = range(number + end - STACK, number + end)
            wanted = np.stack([stored[max(n, frames.first)] for n in past], axis=-1)
            np.testing.assert_array_equal(shown[sample].reshape(*SHAPE, STACK), wanted)


@pytest.mark.parametrize("seed", range(2))
def test_any_history_is_shown_as_it_was(arena: Arena, seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = Frames(SHAPE, most=10_000, chunks=LEAST_CHUNKS, arena=arena)
    stored: list[Pixels] = []
    for frame in film(rng, 2500):
        frames.append(frame)
        stored.append(frame)
        if len(stored) % 50 == 1:
            newest = rng.integers(frames.first, frames.end, 6).tolist()
            check(frames, stored, [*newest, frames.first, frames.end - 1])
    assert frames.end == 2500 and frames.first > 0, "the chunks were filled more than once"
    assert 3 * CHUNK - 20_000 < frames.stored_bytes <= 4 * CHUNK
    check(frames, stored, list(range(frames.first, 2500)))


def test_of_few_frames_the_newest_stay(arena: Arena) -> None:
    frames = Frames(SHAPE, most=40, chunks=LEAST_CHUNKS, arena=arena)
    stored: list[Pixels] = []
    held = set()
    for frame in film(np.random.default_rng(0), 400):
        frames.append(frame)
        stored.append(frame)
        held.add(frames.end - frames.first)
        check(frames, stored, [max(frames.first, len(stored) - 40)])
    # What goes is a whole chain, once all of it is older than the newest 40.
    assert max(held) == 40 + CHAIN - 1
    assert held >= set(range(1, 41))


def test_memory_is_taken_when_needed_and_given_back() -> None:
    arena = MemoryArena()
    frames = Frames(SHAPE, most=60, chunks=1000, arena=arena)
    rng = np.random.default_rng(0)
    for _ in range(500):
        frames.append(rng.integers(0, 256, SHAPE, dtype=np.uint8))
        assert len(arena._chunks) * CHUNK <= frames.stored_bytes + 2 * CHUNK
    assert frames.end - frames.first == 60


def test_a_frame_takes_what_changed_or_what_deflate_makes_of_it() -> None:
    arena = Counting()
    frames = Frames(SHAPE, most=100, chunks=LEAST_CHUNKS, arena=arena)
    still = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
    for _ in range(CHAIN + 1):
        frames.append(still)
    sizes = [len(record) for record in arena.records]
    assert sizes[1:CHAIN] == [0] * (CHAIN - 1), "nothing changed"
    assert 1200 < sizes[0] == sizes[CHAIN] < 1216, "noise is stored as it is, every CHAIN frames"
    moved = still.copy()
    moved[0, 3], moved[29, 39] = ~still[0, 3], ~still[29, 39]
    frames.append(moved)
    places = np.array([3, 1199], "<u2").tobytes()
    assert arena.records[-1] == places + bytes([moved[0, 3], moved[29, 39]])
    frames.append(np.zeros(SHAPE, np.uint8))
    assert len(arena.records[-1]) < 20, "a black frame is less than a thousand changes"


def test_what_changed_is_there_beside_a_key() -> None:
    """So that the frames after it take no inflation."""
    arena = Counting()
    frames = Frames(SHAPE, most=100, chunks=LEAST_CHUNKS, arena=arena)
    frame = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
    for number in range(CHAIN + 1):
        frame[0, 0] = number
        frames.append(frame)
    changes = b"\0\0" + bytes([CHAIN])
    assert arena.records[CHAIN].startswith(changes)
    assert zlib.decompress(arena.records[CHAIN][len(changes) :], -13) == frame.tobytes()


def test_rows_that_move_are_not_sent_again() -> None:
    arena = Counting()
    frames = Frames(SHAPE, most=100, chunks=LEAST_CHUNKS, arena=arena)
    still = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
    frames.append(still)
    scrolled = still.copy()
    scrolled[2:12] = still[:10]
    scrolled[5, 7] ^= 1  # one of the moved rows is a little different
    frames.append(scrolled)
    moves = bytes(n for to in range(2, 12) for n in (to, to - 2))
    assert arena.records[1] == np.uint16(5 * 40 + 7).tobytes() + moves + bytes([scrolled[5, 7]])
    check(frames, [still, scrolled], [1])


def test_a_frame_is_kept_though_the_caller_changes_it() -> None:
    frames = Frames(SHAPE, most=100, chunks=LEAST_CHUNKS, arena=MemoryArena())
    frame = np.zeros(SHAPE, np.uint8)
    for value in (1, 2, 3):
        frame[0, 0] = value
        frames.append(frame)
    _, last = frames.stacks(np.array([2]), np.empty((2, 1, 1200), np.uint32))
    assert last[0, 0].tolist() == [1, 1, 2, 3]


def test_a_file_takes_its_room_at_once_and_has_no_name(tmp_path: Path) -> None:
    arena = DiskArena(tmp_path / "new", 3)
    assert list((tmp_path / "new").iterdir()) == []
    arena.write(CHUNK - 2, b"ab")
    arena.write(CHUNK, b"cd")
    assert arena.read(CHUNK - 2, CHUNK + 2) == b"abcd"
    arena.write(4 * CHUNK - 2, b"yz")  # three chunks later, hence in the same place
    assert arena.read(4 * CHUNK - 2, 4 * CHUNK + 2) == b"yzcd"


def test_misuse_is_refused() -> None:
    for shape, what in (((91, 91), "8281 in 91"), ((257, 2), "514 in 257")):
        with pytest.raises(
            ValueError,
            match=rf"^a frame has at most {MOST_PIXELS} pixels in 256 rows, not {what}\.$",
        ):
            Frames(shape, most=10, chunks=LEAST_CHUNKS, arena=MemoryArena())
    with pytest.raises(ValueError, match=rf"^frames take at least {4 * CHUNK} bytes\.$"):
        Frames(SHAPE, most=10, chunks=3, arena=MemoryArena())
