"""Makes the player of a game for a bundle; raises `TaskError` if they do not fit together."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import TaskError
from firmware_sim.playing.budget import make_replay
from firmware_sim.playing.dqn import DqnTask
from firmware_sim.playing.environments import make_environment
from firmware_sim.playing.environments.atari import AtariGame
from firmware_sim.playing.environments.environment import Environment
from firmware_sim.playing.options import PlayerOptions, usual_options
from firmware_sim.tensor_spec import TensorSpec


def make_player(task: str, bundle: Bundle, options: PlayerOptions) -> DqnTask:
    size = _batch_size(task, bundle)
    game = game_of(task, options.game)
    dqn = options.dqn or usual_options(game)
    # Every episode stores one observation more than it has steps, so half of them may be no steps.
    frames = options.replay_frames
    if frames is not None and frames < 2 * dqn.warm_up_steps:
        raise TaskError(
            f"a warm-up of {dqn.warm_up_steps} steps needs a replay of at least "
            f"{2 * dqn.warm_up_steps} frames, not {frames}."
        )
    make = AtariGame if task == "atari" else make_environment
    environment = partial(make, game, sticky=options.sticky)
    with closing(environment(1)) as example:
        check_observation(game, example, bundle.training_inputs["obs"].of_one, bundle)
        return DqnTask(
            name=game,
            environment=environment,
            replay=partial(make_replay, bundle, options, example),
            batch=size,
            options=dqn,
            seed=options.seed,
        )


def game_of(task: str, game: str | None) -> str:
    """Returns the name of a task's game, as `make_environment` takes it."""
    match task:
        case "cartpole":
            if game not in (None, "cartpole"):
                raise TaskError(f"the task cartpole is a game of its own and takes no {game!r}.")
            return "cartpole"
        case "minatar":
            return f"minatar/{game or 'breakout'}"
        case "atari":
            return game or "breakout"
        case _:
            if game is None:
                raise TaskError("the task play needs the name of a game, as LunarLander-v3.")
            return game


def check_observation(
    game: str, environment: Environment, taken: TensorSpec, bundle: Bundle
) -> None:
    """Raises `TaskError` unless the branch takes, without a batch, what the game shows."""
    if taken != environment.observation:
        raise TaskError(
            f"the game {game!r} shows {environment.observation}; the bundle at {bundle.folder} "
            f"takes {taken}."
        )


def _batch_size(task: str, bundle: Bundle) -> int:
    inputs = bundle.training_inputs
    if "obs" not in inputs:
        raise TaskError(
            f"the task {task} needs a bundle that learns by double Q-learning; "
            f"the one at {bundle.folder} trains on {', '.join(inputs)}."
        )
    return bundle.manifest.batch_size
