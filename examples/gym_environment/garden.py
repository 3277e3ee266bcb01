"""A user-defined game: a robot in a garden must find the plant and avoid the pond."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 5
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
ROBOT, PLANT, POND = range(3)
COLOURS = np.array([(200, 200, 60), (60, 200, 60), (60, 60, 200)], np.uint8)


class Garden(gymnasium.Env[np.ndarray, int]):
    """The observation is the offset (down, right) of plant and pond, in units of the garden."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 (gymnasium's way)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(len(MOVES))
        self._places = np.zeros((3, 2), int)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        cells = self.np_random.choice(SIZE * SIZE, 3, replace=False)
        self._places = np.stack(np.divmod(cells, SIZE), axis=-1)
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._places[ROBOT] = np.clip(self._places[ROBOT] + MOVES[action], 0, SIZE - 1)
        watered = bool((self._places[ROBOT] == self._places[PLANT]).all())
        drowned = bool((self._places[ROBOT] == self._places[POND]).all())
        reward = 1.0 if watered else -1.0 if drowned else -0.02
        return self._seen(), reward, watered or drowned, False, {}

    def render(self) -> np.ndarray:
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        for colour, (row, column) in zip(COLOURS, self._places, strict=True):
            picture[row, column] = colour
        return picture.repeat(16, 0).repeat(16, 1)

    def _seen(self) -> np.ndarray:
        offsets = self._places[[PLANT, POND]] - self._places[ROBOT]
        return (offsets.reshape(4) / SIZE).astype(np.float32)


gymnasium.register("Garden-v0", Garden, max_episode_steps=40)
