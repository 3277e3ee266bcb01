"""The players of a study: a game, and a replay as large as the cell says."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial

from firmware_sim.errors import TaskError
from firmware_sim.playing.dqn import DqnTask, Memory
from firmware_sim.playing.environments import make_environment
from firmware_sim.playing.environments.environment import Environment
from firmware_sim.playing.options import usual_options
from firmware_sim.playing.plain_replay import PlainReplay, entry_bytes
from firmware_sim.playing.replay import StackedReplay, bytes_for
from firmware_sim.training.runtime import TensorSpec
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import BATCH, POWERFUL
from toolkit.experiment.players.cell import RlCell


def player(cell: RlCell, device: str) -> DqnTask:
    settings = cell.settings
    options = replace(
        usual_options(cell.environment),
        warm_up_steps=settings.warm_up,
        exploration_steps=settings.exploration,
        test_steps=settings.test_steps,
    )
    with checked_environment(cell.environment) as example:
        replay = partial(_replay, example.stacked, example.observation, cell.replay(device))
    return DqnTask(
        name=cell.environment,
        environment=partial(make_environment, cell.environment),
        replay=replay,
        batch=BATCH,
        options=options,
        seed=2 * cell.seed + (device == POWERFUL),
    )


def checked_environment(name: str) -> closing[Environment]:
    """A game to look at; one that cannot be played is an error of the study."""
    try:
        return closing(make_environment(name, 1))
    except TaskError as error:
        raise ExperimentError(str(error)) from None


def _replay(stacked: bool, observation: TensorSpec, steps: int) -> Memory:
    if stacked:  # each frame is kept once
        return StackedReplay(bytes_for(steps), most_frames=steps)
    return PlainReplay(observation, steps * entry_bytes(observation), most=steps)
