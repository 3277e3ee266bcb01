"""Atari 2600 in ale-py, seen as in the paper: four frames per action, grey 84×84, stacks of four.

Frames are scaled and stacked by ale-py's vector environment, in C++.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.playing.environments.environment import Seen
from firmware_sim.tensor_spec import Array, TensorSpec

OBSERVATION = TensorSpec((84, 84, 4), np.dtype(np.uint8))  # the oldest frame first
ACTION_FRAMES = 4  # frames that an action lasts
NOOP = 0
_ID = re.compile(r"ALE/(\w+)-v5")


class AtariGame:
    """One game; `sticky` is the probability that the last action is taken again.

    A branch has the same number of outputs for every game. An output that the game has no action
    for does nothing; if there are fewer outputs than actions, the last actions are never taken.
    """

    observation = OBSERVATION
    spare_outputs = True
    stacked = True

    def __init__(self, name: str, episode_steps: int, *, sticky: float = 0.0) -> None:
        self._environment = vector_environment(name, episode_steps, sticky=sticky)
        self.actions = int(self._environment.single_action_space.n)
        self._commands = [np.array([action]) for action in range(self.actions)]
        self._lives = 0
        self._newest = np.zeros(OBSERVATION.shape, OBSERVATION.dtype)

    def reset(self, seed: int | None = None) -> Array:
        frames, info = self._environment.reset(seed=seed)
        self._lives = int(info["lives"][0])
        self._newest = channels_last(frames)[0]
        return self._newest

    def step(self, output: int) -> Seen:
        command = self._commands[output if output < self.actions else NOOP]
        frames, reward, terminated, truncated, info = self._environment.step(command)
        before, self._lives = self._lives, int(info["lives"][0])
        self._newest = channels_last(frames)[0]
        over = bool(terminated[0])
        ended = over or bool(truncated[0])
        return Seen(self._newest, float(reward[0]), over, ended, self._lives < before)

    def render(self) -> Array:
        """Returns the newest frame, grey as the player sees it."""
        return np.repeat(self._newest[..., -1:], 3, axis=-1)

    def close(self) -> None:
        self._environment.close()


def vector_environment(
    name: str, episode_steps: int, *, players: int = 1, sticky: float = 0.0
) -> Any:
    """Returns ale-py's environment of one game, played by `players` at once."""
    try:
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    except ImportError:
        raise TaskError("Atari is played with ale-py and gymnasium; install both.") from None
    rom = rom_of(name, roms.get_all_rom_ids())
    try:
        return AtariVectorEnv(
            rom,
            num_envs=players,
            num_threads=1,
            max_num_frames_per_episode=ACTION_FRAMES * episode_steps,
            repeat_action_probability=sticky,
            frameskip=ACTION_FRAMES,
            reward_clipping=False,  # scores are in points; what is learnt is the task's choice
        )
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0].rstrip("!.,")
        raise TaskError(f"the ROM of the game {name!r} cannot be read ({reason}).") from None


def rom_of(name: str, known: Collection[str]) -> str:
    """Returns the name of a ROM: breakout and ALE/Breakout-v5 are both breakout."""
    if match := _ID.fullmatch(name):
        by_title = {rom.title().replace("_", ""): rom for rom in known}
        name = by_title.get(match[1], name)
    if name not in known:
        raise TaskError(
            f"there is no Atari game {name!r}; names are written as space_invaders or "
            "ALE/SpaceInvaders-v5 is, and ale_py.roms.get_all_rom_ids() lists them."
        )
    return name


def channels_last(frames: Array) -> Array:
    """Turns [players, 4, 84, 84] into [players, 84, 84, 4]."""
    return np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
