"""The games that a device can play; `make_environment` makes any of them.

breakout, space_invaders, ALE/BeamRider-v5      Atari 2600, by ale-py
minatar/breakout                                MinAtar's five games
cartpole                                        gymnasium's CartPole-v1
LunarLander-v3, package.module:MyGame-v0        any of gymnasium's with numbered actions
"""

from __future__ import annotations

import re

from firmware_sim.playing.environments.atari import AtariGame
from firmware_sim.playing.environments.cartpole import ID, CartPole
from firmware_sim.playing.environments.environment import Environment, Seen
from firmware_sim.playing.environments.gymnasium_game import GymnasiumGame
from firmware_sim.playing.environments.minatar_game import MinAtarGame

__all__ = ["Environment", "Seen", "make_environment"]

MINATAR = "minatar/"
_ATARI = re.compile(r"ALE/.*|[a-z0-9_]+")  # other ids have capitals, a version or a module


def make_environment(
    name: str, episode_steps: int, *, sticky: float = 0.0, rendered: bool = False
) -> Environment:
    """Returns the named game, in episodes of at most `episode_steps` steps.

    With probability `sticky` the last action is taken again instead of the player's. `rendered`
    must be set if pictures of the game will be drawn.
    """
    if name in ("cartpole", ID):
        return CartPole(episode_steps, sticky=sticky)
    if name.startswith(MINATAR):
        return MinAtarGame(name.removeprefix(MINATAR), episode_steps, sticky=sticky)
    if _ATARI.fullmatch(name):
        return AtariGame(name, episode_steps, sticky=sticky)
    return GymnasiumGame(name, episode_steps, sticky=sticky, rendered=rendered)
