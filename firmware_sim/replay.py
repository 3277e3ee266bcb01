"""Experience replay of a player that sees stacked frames: every frame is stored once.

    entry:       0      1      2      3   |  4      5    …      ( | = a new episode begins)
    frame:       f₀     f₁     f₂     f₃  |  g₀     g₁
    behind:      0      1      2      3   |  0      1           frames before it in its episode
    arrived by:  -    a₀,r₀  a₁,r₁  a₂,r₂ |  -    a₀,r₀         the step that led to it

A transition is one entry that a step led to: `next_obs` is the stack that ends with its frame,
`obs` the stack that ends with the frame before. Stacks are filled up with black frames at the
beginning of an episode, as ale-py fills its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firmware_sim.runtime import Array


@dataclass(frozen=True, eq=False)
class Transitions:
    """A mini-batch of steps; stacks are [n, height, width, stack], the oldest frame first."""

    obs: Array  # uint8
    action: Array  # int32
    reward: Array  # float32
    next_obs: Array  # uint8
    done: Array  # float32: 1 where the game was over, and nothing more could be won


class Replay:
    """A ring of the last `capacity` frames and of the steps between them.

    Entries are counted from the first one ever stored; entry i lies in row i mod capacity.
    """

    def __init__(self, capacity: int, *, frame: tuple[int, int] = (84, 84), stack: int = 4) -> None:
        if capacity < stack + 2:
            raise ValueError(f"a replay of {capacity} frames holds no stack of {stack} to draw.")
        self.capacity = capacity
        self.stack = stack
        self._frames = np.zeros((capacity, *frame), np.uint8)
        self._behind = np.zeros(capacity, np.uint8)  # at most stack - 1: more is never needed
        self._action = np.zeros(capacity, np.int32)
        self._reward = np.zeros(capacity, np.float32)
        self._done = np.zeros(capacity, np.float32)
        self._stored = 0  # entries, ever
        self._steps = 0  # entries in the ring that a step led to

    def __len__(self) -> int:
        """Steps in the ring."""
        return self._steps

    def begin(self, frame: Array) -> None:
        """The first frame of an episode."""
        if self._stored and not self._behind[(self._stored - 1) % self.capacity]:
            raise ValueError("an episode has at least one step.")
        self._store(frame, behind=0)

    def add(self, action: int, reward: float, done: bool, frame: Array) -> None:
        """One step from the newest frame to this one."""
        if not self._stored:
            raise ValueError("an episode begins with a frame, not with a step.")
        newest = int(self._behind[(self._stored - 1) % self.capacity])
        row = self._store(frame, behind=min(newest + 1, self.stack - 1))
        self._action[row], self._reward[row], self._done[row] = action, reward, done

    def sample(self, rng: np.random.Generator, size: int) -> Transitions:
        """Uniform over the steps whose frames are all still in the ring, with repetition."""
        if not self._steps:
            raise ValueError("there is no step to draw yet.")
        # `obs` of entry i may reach back to entry i - stack, which must not be overwritten yet.
        oldest = self._stored - self.capacity
        first = oldest + self.stack if oldest > 0 else 1
        drawn = rng.integers(first, self._stored, size)
        # Of two neighbours one is a step (`begin` sees to it), so this ends soon.
        while (beginnings := self._behind[drawn % self.capacity] == 0).any():
            drawn[beginnings] = rng.integers(first, self._stored, beginnings.sum())
        rows = drawn % self.capacity
        return Transitions(
            obs=self._stacks(drawn - 1),
            action=self._action[rows],
            reward=self._reward[rows],
            next_obs=self._stacks(drawn),
            done=self._done[rows],
        )

    def _store(self, frame: Array, *, behind: int) -> int:
        row = self._stored % self.capacity
        if self._stored >= self.capacity:
            self._steps -= int(self._behind[row] > 0)
        self._frames[row] = frame
        self._behind[row] = behind
        self._stored += 1
        self._steps += int(behind > 0)
        return row

    def _stacks(self, entries: Array) -> Array:
        """The frames up to each entry, black where its episode had not begun."""
        behind = self._behind[entries % self.capacity]
        frames = []
        for back in reversed(range(self.stack)):
            frame = self._frames[(entries - back) % self.capacity]
            frame[behind < back] = 0
            frames.append(frame)
        return np.stack(frames, axis=-1)
