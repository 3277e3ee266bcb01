"""The branches of a study: the zoo's, with the cell's seed, learning rate and branch dropout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras

from toolkit import zoo
from toolkit.branch.branch import Branch, sharing_everything
from toolkit.branch.layers import BranchDropout
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import RMSProp
from toolkit.errors import ExperimentError
from toolkit.experiment.players.cell import RlCell
from toolkit.experiment.supervised.cell import SupervisedCell
from toolkit.zoo import cifar10
from toolkit.zoo.pair import Pair

NPZ = "npz"
SMALLEST_IMAGE = 12  # pixels; CIFAR-10's complex branch leaves nothing of a smaller one


def supervised_branch(
    cell: SupervisedCell, device: str, *, image_shape: tuple[int, ...], classes: int
) -> Branch:
    """The branch of a device, its random weights drawn with the cell's seed."""
    kind, topology = cell.branch(device)
    keras.utils.set_random_seed(cell.seed)
    if cell.settings.task == NPZ:
        branch = _pair(image_shape, classes).branches()[topology, kind]()
    else:
        branch = zoo.build(cell.settings.task, kind, topology)
    if not cell.branch_dropout:
        branch = without_branch_dropout(branch)
    return _learning_at(branch, cell.settings.learning_rate)


def player_branch(cell: RlCell, device: str) -> Branch:
    """The branch of a player; where all are alike, all of it is shared."""
    keras.utils.set_random_seed(cell.seed)
    branch = zoo.build(cell.settings.task, cell.kind(device), game=cell.game)
    if cell.shares_everything():
        branch = sharing_everything(branch)
    return _learning_at(branch, cell.settings.learning_rate)


def _learning_at(branch: Branch, rate: float | None) -> Branch:
    """With another learning rate, unless it is None."""
    if rate is None:
        return branch
    changed: Any = {"learning_rate": rate}
    optimizer = replace(branch.learning.optimizer, **changed)  # type: ignore[type-var]
    return replace(branch, learning=replace(branch.learning, optimizer=optimizer))


def without_branch_dropout(branch: Branch) -> Branch:
    """The same branch and weights, for the ablation."""

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if isinstance(layer, BranchDropout):
            config["rate"] = 0.0
        return type(layer).from_config(config)

    model = keras.models.clone_model(branch.model, clone_function=clone)
    model.set_weights(branch.model.get_weights())
    return replace(branch, model=model)


def _pair(image_shape: tuple[int, ...], classes: int) -> Pair:
    """CIFAR-10's layers for images of another size and any number of classes."""
    if len(image_shape) != 3 or min(image_shape[:2]) < SMALLEST_IMAGE:
        raise ExperimentError(
            f"images of {list(image_shape)} cannot be studied; they need [height, width, channels] "
            f"with at least {SMALLEST_IMAGE} × {SMALLEST_IMAGE} pixels."
        )
    high, wide, channels = image_shape
    return Pair(
        name=NPZ,
        input_shape=(high, wide, channels),
        classes=classes,
        stem_layers=cifar10.STEM,
        stem=cifar10.stem,
        light_features=cifar10.light_features,
        complex_features=cifar10.complex_features,
        learning=Supervised("cross_entropy", RMSProp(learning_rate=0.0001, decay=1e-6)),
        input_scale=1 / 255,
    )
