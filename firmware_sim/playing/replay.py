"""Experience replay of a player that sees stacked frames: every frame is stored once.

    entry:       0      1      2      3   |  4      5    …      ( | = a new episode begins)
    frame:       f₀     f₁     f₂     f₃  |  g₀     g₁
    behind:      0      1      2      3   |  0      1           frames before it in its episode
    arrived by:  -    a₀,r₀  a₁,r₁  a₂,r₂ |  -    a₀,r₀         the step that led to it

A transition is one entry that a step led to: `next_obs` is the stack that ends with its frame,
`obs` the stack that ends with the frame before. Stacks are filled up with black frames at the
beginning of an episode, as ale-py fills its own.

The number of entries depends on the bytes that the frames take (see `frames`), and is at most
`most_frames`; the oldest are dropped first.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firmware_sim.playing.arena import CHUNK, DiskArena, MemoryArena
from firmware_sim.playing.frame_codec import CHAIN, longest_changes, longest_key
from firmware_sim.playing.frames import INDEX_BYTES, LEAST_CHUNKS, STACK, Frames
from firmware_sim.tensor_spec import Array

MOST_FRAMES = 1_000_000  # the paper's replay on powerful devices
ENTRY_BYTES = INDEX_BYTES + 1 + 2 + 4 + 1  # in memory: of the frame, behind, action, reward, done
# Less than a frame of Breakout with its entry takes; few games are simpler. So the bytes of frames
# run out before the rows of entries, which take less than a fifth of the budget.
_LEAST_FRAME_BYTES = 120


@dataclass(frozen=True, eq=False)
class Transitions:
    """A mini-batch of steps; stacks are [n, height, width, stack], the oldest frame first."""

    obs: Array  # uint8
    action: Array  # int32
    reward: Array  # float32
    next_obs: Array  # uint8
    done: Array  # float32: 1 where the game was over, and nothing more could be won


class _StackMemory:
    """Memory for the stacks of a batch, reused once no array refers to it.

    Otherwise the kernel would map a block of this size every time, page by page, which takes as
    long as everything else. There are two, since one batch is often held while the next is drawn.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[bytearray, weakref.ref[Array]]] = deque(maxlen=2)

    def lend(self, words: int) -> Array:
        """Returns an array of `words` words of STACK bytes each."""
        size = np.dtype("<u4").itemsize * words
        free = (block for block, lent in self._blocks if len(block) == size and lent() is None)
        block = next(free, None) or bytearray(size)
        lent = np.frombuffer(block, "<u4")  # views of it keep it alive
        kept = [other for other in self._blocks if other[0] is not block]
        self._blocks = deque([*kept, (block, weakref.ref(lent))], maxlen=2)
        return lent


class Replay:
    """The newest frames that fit a budget, and the steps between them.

    Entries are counted from the first one ever stored; entry i lies in row i mod capacity.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        most_frames: int = MOST_FRAMES,
        folder: Path | None = None,
        frame: tuple[int, int] = (84, 84),
    ) -> None:
        """The budget is memory; with a folder it is disk, and only entries are in memory."""
        self.capacity = min(most_frames, budget_bytes // _LEAST_FRAME_BYTES)
        entries = (self.capacity + CHAIN) * ENTRY_BYTES
        chunks = (budget_bytes if folder else budget_bytes - entries) // CHUNK
        if most_frames < STACK + 2 or chunks < LEAST_CHUNKS:
            raise ValueError(
                f"a replay of {most_frames} frames in {budget_bytes} bytes is too small to draw "
                f"stacks of {STACK} from."
            )
        arena = DiskArena(folder, chunks) if folder else MemoryArena()
        self._shape = frame
        self._memory = _StackMemory()
        self._frames = Frames(frame, most=self.capacity, chunks=chunks, arena=arena)
        self._behind = np.zeros(self.capacity, np.uint8)  # at most STACK: more is never needed
        self._action = np.zeros(self.capacity, np.int16)
        self._reward = np.zeros(self.capacity, np.float32)
        self._done = np.zeros(self.capacity, np.bool_)
        self._oldest = 0  # entry
        self._steps = 0  # entries since the oldest that a step led to

    def __len__(self) -> int:
        """Steps held."""
        return self._steps

    @property
    def full(self) -> bool:
        """Whether an entry was dropped already."""
        return self._oldest > 0

    @property
    def held_bytes(self) -> int:
        """Bytes that frames and entries take now."""
        return self._frames.stored_bytes + (self._frames.end - self._oldest) * ENTRY_BYTES

    def begin(self, frame: Array) -> None:
        """Stores the first frame of an episode."""
        if self._frames.end and not self._newest_behind():
            raise ValueError("an episode has at least one step.")
        self._store(frame, behind=0)

    def add(self, action: int, reward: float, done: bool, frame: Array) -> None:
        """Stores one step from the newest frame to this one."""
        if not self._frames.end:
            raise ValueError("an episode begins with a frame, not with a step.")
        row = self._store(frame, behind=min(self._newest_behind() + 1, STACK))
        self._action[row], self._reward[row], self._done[row] = action, reward, done

    def sample(self, rng: np.random.Generator, size: int) -> Transitions:
        """Draws uniformly from the steps whose frames are all held, with repetition."""
        if not self._steps:
            raise ValueError("there is no step to draw yet.")
        # `obs` of entry i may reach back to entry i - STACK, which must not be gone yet.
        first, end = self._oldest + STACK if self.full else 1, self._frames.end
        drawn = rng.integers(first, end, size)
        # Of two neighbours one is a step (`begin` sees to it), so this ends soon.
        while (beginnings := self._behind[drawn % self.capacity] == 0).any():
            drawn[beginnings] = rng.integers(first, end, beginnings.sum())
        rows = drawn % self.capacity
        obs, next_obs = self._stacks(drawn, self._behind[rows])
        return Transitions(
            obs=obs,
            action=self._action[rows].astype(np.int32),
            reward=self._reward[rows],
            next_obs=next_obs,
            done=self._done[rows].astype(np.float32),
        )

    def _newest_behind(self) -> int:
        return int(self._behind[(self._frames.end - 1) % self.capacity])

    def _store(self, frame: Array, *, behind: int) -> int:
        entry = self._frames.end
        self._frames.append(frame)
        # `Frames` may hold older ones: the beginning of the chain of the oldest.
        oldest = max(self._frames.first, entry + 1 - self.capacity)
        gone = np.arange(self._oldest, oldest) % self.capacity
        self._steps += int(behind > 0) - int(np.count_nonzero(self._behind[gone]))
        self._oldest = oldest
        row = entry % self.capacity
        self._behind[row] = behind
        return row

    def _stacks(self, entries: Array, behind: Array) -> tuple[Array, Array]:
        """Returns the stacks before and after the step to each entry, as uint8 [n, h, w, STACK]."""
        words = self._memory.lend(2 * len(entries) * self._frames.pixels)
        out = words.reshape(2, len(entries), self._frames.pixels)
        obs, next_obs = self._frames.stacks(entries, out)
        for sample in np.flatnonzero(behind < STACK).tolist():  # its episode had just begun
            obs[sample, :, : STACK - int(behind[sample])] = 0
            next_obs[sample, :, : STACK - 1 - int(behind[sample])] = 0
        shape = (len(entries), *self._shape, STACK)
        return obs.reshape(shape), next_obs.reshape(shape)


class StackedReplay(Replay):
    """Accepts stacks as a player sees them, and stores the newest frame of each."""

    def begin(self, obs: Array) -> None:
        super().begin(obs[..., -1])

    def add(self, action: int, reward: float, done: bool, obs: Array) -> None:
        super().add(action, reward, done, obs[..., -1])


def bytes_for(frames: int, frame: tuple[int, int] = (84, 84)) -> int:
    """Returns a budget that is enough for `frames` frames, even of noise."""
    pixels = frame[0] * frame[1]
    # At the end of a chunk up to the longest record is left empty.
    filled = CHUNK - longest_key(pixels) - longest_changes(pixels)
    chunks = LEAST_CHUNKS + (frames + CHAIN) // (filled // longest_key(pixels))
    return (frames + CHAIN) * max(ENTRY_BYTES, _LEAST_FRAME_BYTES) + chunks * CHUNK
