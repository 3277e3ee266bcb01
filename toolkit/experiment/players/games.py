"""The game of a player and its replay buffer, with the capacity that the cell states."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial

from firmware_sim.playing.dqn import DqnTask, Memory
from firmware_sim.playing.environments import make_environment
from firmware_sim.playing.options import usual_options
from firmware_sim.playing.plain_replay import PlainReplay, entry_bytes
from firmware_sim.playing.replay import StackedReplay, bytes_for
from firmware_sim.tensor_spec import TensorSpec
from toolkit.experiment.cell import BATCH, POWERFUL
from toolkit.experiment.players.cell import PlayerCell


def make_task(cell: PlayerCell, device: str) -> DqnTask:
    """Returns the task of a device that plays the cell's game."""
    options = replace(
        usual_options(cell.environment),
        warm_up_steps=cell.options.warm_up,
        exploration_steps=cell.exploration(device),
        test_steps=cell.options.test_steps,
    )
    with closing(make_environment(cell.environment, 1)) as example:
        replay = partial(_replay, example.stacked, example.observation, cell.replay(device))
    return DqnTask(
        name=cell.environment,
        environment=partial(make_environment, cell.environment),
        replay=replay,
        batch=BATCH,
        options=options,
        seed=2 * cell.seed + (device == POWERFUL),
    )


def _replay(stacked: bool, observation: TensorSpec, steps: int) -> Memory:
    if stacked:  # consecutive observations have frames in common; each frame is stored once
        return StackedReplay(bytes_for(steps), most_frames=steps)
    return PlainReplay(observation, steps * entry_bytes(observation), most=steps)
