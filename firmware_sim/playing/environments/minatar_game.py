"""MinAtar: five small games on a 10×10 grid, in which every kind of object has a plane of 0 and 1.

A game is loaded from its file alone: the package around it would load libraries for plotting,
which take more memory than a weak device has.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.playing.environments.environment import Seen
from firmware_sim.tensor_spec import Array, TensorSpec

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
ACTIONS = 6  # of every game: nothing, left, up, right, down, fire
# Colours of planes in a picture; later planes lie above earlier ones.
_COLOURS = np.array(
    [[0, 0, 0], [230, 230, 230], [90, 170, 250], [60, 90, 140], [220, 130, 60], [240, 210, 80],
     [120, 200, 110], [200, 90, 160], [150, 110, 220], [90, 210, 200], [230, 80, 80]],
    np.uint8,
)  # fmt: skip


class MinAtarGame:
    """One game, which becomes more difficult with time, as by its authors' default."""

    actions = ACTIONS
    spare_outputs = False
    stacked = False

    def __init__(self, name: str, episode_steps: int, *, sticky: float = 0.0) -> None:
        self._game = _load(name).Env(ramping=True)
        self._most = episode_steps
        self._sticky = sticky
        self._taken = 0  # steps of this episode
        self._last_output = 0
        self.observation = TensorSpec(tuple(self._game.state_shape()), np.dtype(np.uint8))

    def reset(self, seed: int | None = None) -> Array:
        if seed is not None:
            self._game.random = np.random.RandomState(seed)
        self._game.reset()
        self._taken = self._last_output = 0
        return self._now()

    def step(self, output: int) -> Seen:
        if self._sticky and self._game.random.rand() < self._sticky:
            output = self._last_output
        self._last_output = output
        reward, over = self._game.act(output)
        self._taken += 1
        return Seen(self._now(), float(reward), bool(over), over or self._taken >= self._most)

    def render(self) -> Array:
        now = self._now()
        colours: Array = _COLOURS[(now * np.arange(1, now.shape[-1] + 1)).max(-1)]
        return colours

    def close(self) -> None:
        """Does nothing: a game is a few arrays."""

    def _now(self) -> Array:
        state: Array = self._game.state()
        return state.view(np.uint8)  # a view of bool values, in a new array every time


def _load(name: str) -> ModuleType:
    if name not in GAMES:
        raise TaskError(f"there is no MinAtar game {name!r}; there are {', '.join(GAMES)}.")
    package = importlib.util.find_spec("minatar")
    if package is None or package.origin is None:
        raise TaskError("MinAtar is played with the package minatar; install it.")
    file = Path(package.origin).parent / "environments" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"minatar_{name}", file)
    assert spec is not None and spec.loader is not None, "the file name ends with .py"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
