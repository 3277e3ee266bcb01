"""Any game of gymnasium's whose observations are arrays and whose actions are numbered."""

from __future__ import annotations

from typing import Any

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.playing.environments.environment import Seen
from firmware_sim.tensor_spec import Array, TensorSpec


class GymnasiumGame:
    """Observations are uint8 if the game's are, else float32; episodes may end before its own do.

    `name` is an id as gymnasium.make takes it: `module:Id-v0` loads the module first.
    """

    spare_outputs = False
    stacked = False

    def __init__(
        self, name: str, episode_steps: int, *, sticky: float = 0.0, rendered: bool = False
    ) -> None:
        self._name = name
        self._environment = _make(name, rendered)
        self._most = episode_steps
        self._sticky = sticky
        self._taken = 0  # steps of this episode
        self._rng = np.random.default_rng(0)
        from gymnasium import spaces

        space, actions = self._environment.observation_space, self._environment.action_space
        if not isinstance(actions, spaces.Discrete):
            raise TaskError(
                f"the game {name!r} takes {actions} as an action; double Q-learning needs "
                "numbered ones (gymnasium.spaces.Discrete)."
            )
        if not isinstance(space, spaces.Box):
            raise TaskError(
                f"the game {name!r} shows {space}; a branch needs an array (gymnasium.spaces.Box)."
            )
        self.actions = int(actions.n)
        self._start = self._last = int(actions.start)
        dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
        self.observation = TensorSpec(tuple(space.shape), dtype)

    def reset(self, seed: int | None = None) -> Array:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._taken, self._last = 0, self._start
        obs, _ = self._environment.reset(seed=seed)
        return self._own(obs)

    def step(self, output: int) -> Seen:
        action = output + self._start
        if self._sticky and self._rng.random() < self._sticky:
            action = self._last
        self._last = action
        obs, reward, terminated, truncated, _ = self._environment.step(action)
        self._taken += 1
        ended = bool(terminated or truncated or self._taken >= self._most)
        return Seen(self._own(obs), float(reward), bool(terminated), ended)

    def render(self) -> Array:
        from gymnasium.error import DependencyNotInstalled

        try:
            picture = self._environment.render()
        except DependencyNotInstalled as error:
            raise TaskError(f"the game {self._name!r} cannot be drawn: {error}.") from None
        if not isinstance(picture, np.ndarray):
            raise TaskError(f"the game {self._name!r} does not draw itself as an array.")
        return picture

    def close(self) -> None:
        self._environment.close()

    def _own(self, obs: Any) -> Array:
        """Returns a copy: some games return the same array every time."""
        return np.array(obs, self.observation.dtype)


def _make(name: str, rendered: bool) -> Any:
    try:
        import gymnasium
    except ImportError:
        raise TaskError(f"the game {name!r} is played with gymnasium; install it.") from None
    try:
        return gymnasium.make(
            name, render_mode="rgb_array" if rendered else None, disable_env_checker=True
        )
    except (gymnasium.error.Error, ImportError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise TaskError(f"the game {name!r} cannot be made ({reason}).") from None
