"""The contract of every game."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from firmware_sim.tensor_spec import Array, TensorSpec


@dataclass(frozen=True, eq=False, slots=True)
class Seen:
    """The result of a step."""

    obs: Array  # as `Environment.observation` specifies
    reward: float  # points, as the game counts them
    terminated: bool  # the game is over: nothing more could be won
    ended: bool  # so is the episode: terminated, or cut off at its greatest length
    life_lost: bool = False


class Environment(Protocol):
    """A game with numbered actions. An array that it returned never changes afterwards."""

    observation: TensorSpec  # of one, without a batch
    actions: int
    spare_outputs: bool  # an output without an action does nothing; else there must be none
    stacked: bool  # an observation is the newest frames, each of which is shown four times

    def reset(self, seed: int | None = None) -> Array:
        """Starts an episode; without a seed the game's own random numbers continue."""

    def step(self, output: int) -> Seen: ...

    def render(self) -> Array:
        """Returns a picture of the present state, uint8 [height, width, 3]."""

    def close(self) -> None: ...
