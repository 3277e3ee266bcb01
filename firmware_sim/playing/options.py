"""How a player explores, learns and is tested: the paper's values, and ours for small games."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firmware_sim.errors import TaskError


@dataclass(frozen=True, kw_only=True)
class DqnOptions:
    """The choices around double Q-learning; γ, the loss and its optimiser are in the bundle.

    Defaults are the paper's, except where a comment states its value. A step is one action.
    """

    warm_up_steps: int = 1_000  # played before the first mini-batch (the paper: 50,000)
    exploration_steps: int = 1_000_000  # while which ε falls
    first_exploration: float = 1.0  # ε of the first step
    last_exploration: float = 0.1  # ε after `exploration_steps`
    test_exploration: float = 0.02  # ε of a test episode
    test_episodes: int = 1  # at each synchronisation
    # The paper is silent on these three, which are as usual for Atari: half an hour of play at
    # 60 Hz, points of which only the sign is learnt, and lives that may be lost within a game.
    episode_steps: int = 27_000  # most of one training episode
    clip_rewards: bool = True  # learn sign(points)
    life_loss_ends: bool = False  # learn that nothing more can be won after a lost life
    test_steps: int = 4_500  # most of one test episode: five minutes of play at 60 Hz

    def __post_init__(self) -> None:
        for name in ("warm_up_steps", "test_episodes", "episode_steps", "test_steps"):
            if getattr(self, name) < 1:
                raise TaskError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.exploration_steps < 0:
            raise TaskError(f"exploration_steps is {self.exploration_steps}, which is below 0.")
        for name in ("first_exploration", "last_exploration", "test_exploration"):
            if not 0 <= getattr(self, name) <= 1:
                raise TaskError(f"{name} is {getattr(self, name)}, which is not between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class PlayerOptions:
    """What a user may choose about a player; `None` leaves the choice to the game or the caps."""

    seed: int = 0
    game: str | None = None  # by default the task's usual one
    sticky: float = 0.0  # probability that a game takes the last action again (the paper: 0)
    # By default as many observations as the profile's caps allow (the paper: 100,000 on weak
    # devices, 1,000,000 on powerful ones).
    replay_frames: int | None = None
    replay_folder: Path | None = None  # to keep the replay on disk
    dqn: DqnOptions | None = None  # by default what is usual for the game

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise TaskError(f"the seed {self.seed} is not between 0 and 2⁶³ - 1.")
        if not 0 <= self.sticky < 1:
            raise TaskError(f"actions cannot be sticky with probability {self.sticky}.")


CARTPOLE = DqnOptions(
    warm_up_steps=500,
    exploration_steps=20_000,
    test_steps=500,
    clip_rewards=False,
)
# The values of Young and Tian, who made MinAtar, but with a limit to the length of episodes.
MINATAR = DqnOptions(
    warm_up_steps=5_000,
    exploration_steps=100_000,
    episode_steps=5_000,
    test_steps=2_500,
    clip_rewards=False,
)


def usual_options(game: str) -> DqnOptions:
    """Returns the usual options of a game, by its name for `make_environment`; else the paper's."""
    if game in ("cartpole", "CartPole-v1"):
        return CARTPOLE
    return MINATAR if game.startswith("minatar/") else DqnOptions()


def exploration(step: int, options: DqnOptions) -> float:
    """Returns ε of a step: it falls linearly from the first value to the last."""
    if step >= options.exploration_steps:
        return options.last_exploration
    fallen = (options.first_exploration - options.last_exploration) / options.exploration_steps
    return options.first_exploration - fallen * step
