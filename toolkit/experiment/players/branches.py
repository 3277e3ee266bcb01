"""The branches of a study of players: the zoo's, with the options of the cell."""

from __future__ import annotations

import keras

from toolkit import zoo
from toolkit.branch.branch import Branch, sharing_everything, with_learning_rate
from toolkit.experiment.players.cell import PlayerCell


def player_branch(cell: PlayerCell, device: str) -> Branch:
    """Returns the branch of a device; in a homogeneous cell all its layers are shared."""
    keras.utils.set_random_seed(cell.seed)
    branch = zoo.build(cell.options.task, cell.branch(device), cell.zoo_topology(), game=cell.game)
    if cell.shares_everything():
        branch = sharing_everything(branch)
    return with_learning_rate(branch, cell.options.learning_rate)
