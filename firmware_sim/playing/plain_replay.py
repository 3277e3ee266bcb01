"""Experience replay for small observations: a ring of plain arrays, each observation stored once.

    entry:       0      1      2   |  3      4    …      ( | = a new episode begins)
    obs:         s₀     s₁     s₂  |  t₀     t₁
    arrived by:  -    a₀,r₀  a₁,r₁ |  -    a₀,r₀         the step that led to it

A transition is one entry that a step led to, with the observation of the entry before.
"""

from __future__ import annotations

import math

import numpy as np

from firmware_sim.playing.replay import Transitions
from firmware_sim.tensor_spec import Array, TensorSpec

LEAST_ENTRIES = 4


def entry_bytes(observation: TensorSpec) -> int:
    """Returns the bytes of an entry: the observation, its action, reward, done and begins."""
    return math.prod(observation.shape) * observation.dtype.itemsize + 4 + 4 + 4 + 1


class PlainReplay:
    """The newest observations that fit a budget, and the steps between them.

    Entries are counted from the first one ever stored; entry i lies in row i mod capacity.
    """

    def __init__(self, observation: TensorSpec, budget_bytes: int, *, most: int) -> None:
        self.capacity = min(most, budget_bytes // entry_bytes(observation))
        if self.capacity < LEAST_ENTRIES:
            raise ValueError(
                f"a replay of {most} observations in {budget_bytes} bytes is too small to draw "
                "steps from."
            )
        # Zeros that were never written take no memory.
        self._obs = np.zeros((self.capacity, *observation.shape), observation.dtype)
        self._action = np.zeros(self.capacity, np.int32)
        self._reward = np.zeros(self.capacity, np.float32)
        self._done = np.zeros(self.capacity, np.float32)
        self._begins = np.zeros(self.capacity, np.bool_)
        self._end = 0  # number of the next entry
        self._steps = 0  # entries held that a step led to

    def __len__(self) -> int:
        """Steps held."""
        return self._steps

    @property
    def full(self) -> bool:
        """Whether an entry was overwritten already."""
        return self._end > self.capacity

    def begin(self, obs: Array) -> None:
        """Stores the first observation of an episode."""
        if self._end and self._begins[(self._end - 1) % self.capacity]:
            raise ValueError("an episode has at least one step.")
        self._begins[self._store(obs)] = True

    def add(self, action: int, reward: float, done: bool, obs: Array) -> None:
        """Stores one step from the newest observation to this one."""
        if not self._end:
            raise ValueError("an episode begins with an observation, not with a step.")
        row = self._store(obs)
        self._begins[row] = False
        self._action[row], self._reward[row], self._done[row] = action, reward, done
        self._steps += 1

    def sample(self, rng: np.random.Generator, size: int) -> Transitions:
        """Draws uniformly from the steps whose observations are both held, with repetition."""
        if not self._steps:
            raise ValueError("there is no step to draw yet.")
        rows = self._rows(rng, size)
        # Of two neighbours one is a step (`begin` sees to it), so this ends soon.
        while (beginnings := self._begins.take(rows)).any():
            rows[beginnings] = self._rows(rng, int(np.count_nonzero(beginnings)))
        # `take` is several times as fast as indexing; row -1 is the last, as it should be.
        return Transitions(
            obs=self._obs.take(rows - 1, 0, mode="wrap"),
            action=self._action.take(rows),
            reward=self._reward.take(rows),
            next_obs=self._obs.take(rows, 0),
            done=self._done.take(rows),
        )

    def _rows(self, rng: np.random.Generator, size: int) -> Array:
        """Draws rows of any entries but the oldest, whose predecessor is overwritten."""
        if not self.full:
            return rng.integers(1, self._end, size)
        return rng.integers(self._end + 1, self._end + self.capacity, size) % self.capacity

    def _store(self, obs: Array) -> int:
        row = self._end % self.capacity
        if self._end >= self.capacity and not self._begins[row]:
            self._steps -= 1  # the step in this row is overwritten
        self._obs[row] = obs
        self._end += 1
        return row
