"""gymnasium's CartPole, drawn here: its own pictures need a library for windows."""

from __future__ import annotations

import numpy as np

from firmware_sim.playing.environments.environment import Seen
from firmware_sim.playing.environments.gymnasium_game import GymnasiumGame
from firmware_sim.tensor_spec import Array

ID = "CartPole-v1"
_HEIGHT, _WIDTH = 100, 150  # pixels
_PER_UNIT = 30  # pixels; the track is 4.8 units long
_FLOOR, _CART, _POLE = 80, (10, 6), 40  # height of the track; half of the cart; the pole
_PAPER, _LINE, _CART_COLOUR, _POLE_COLOUR = 255, 150, (40, 60, 90), (200, 120, 60)


class CartPole(GymnasiumGame):
    """Position and speed of the cart, angle and speed of the pole; a point for every step."""

    def __init__(self, episode_steps: int, *, sticky: float = 0.0) -> None:
        super().__init__(ID, episode_steps, sticky=sticky)
        self._newest: Array = np.zeros(4, np.float32)

    def reset(self, seed: int | None = None) -> Array:
        self._newest = super().reset(seed)
        return self._newest

    def step(self, output: int) -> Seen:
        seen = super().step(output)
        self._newest = seen.obs
        return seen

    def render(self) -> Array:
        position, _, angle, _ = self._newest.tolist()
        picture = np.full((_HEIGHT, _WIDTH, 3), _PAPER, np.uint8)
        picture[_FLOOR] = _LINE
        x = round(_WIDTH / 2 + _PER_UNIT * position)
        half_width, half_height = _CART
        rows = slice(_FLOOR - half_height, _FLOOR + half_height)
        picture[rows, max(0, x - half_width) : max(0, x + half_width)] = _CART_COLOUR
        along = np.arange(_POLE)
        down = np.rint(_FLOOR - half_height - along * np.cos(angle)).astype(int)
        across = np.rint(x + along * np.sin(angle)).astype(int)
        for thick in (-1, 0, 1):
            columns = across + thick
            inside = (columns >= 0) & (columns < _WIDTH) & (down >= 0) & (down < _HEIGHT)
            picture[down[inside], columns[inside]] = _POLE_COLOUR
        return picture
