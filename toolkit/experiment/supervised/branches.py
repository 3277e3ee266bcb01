"""The branches of a supervised study: the zoo's or the user's, with the options of the cell."""

from __future__ import annotations

from dataclasses import replace

import keras

from toolkit import zoo
from toolkit.branch.branch import Branch, with_learning_rate
from toolkit.branch.layers import BranchDropout
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import RMSProp
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ISOLATED
from toolkit.experiment.supervised.cell import NPZ, SupervisedCell
from toolkit.experiment.supervised.own_networks import own_branches
from toolkit.zoo import cifar10
from toolkit.zoo.pair import Pair

SMALLEST_IMAGE = 12  # pixels; the strides of CIFAR-10's complex branch need that many


def supervised_branch(
    cell: SupervisedCell, device: str, *, image_shape: tuple[int, ...], classes: int
) -> Branch:
    """Returns the branch of a device; its random weights are drawn with the cell's seed."""
    entry, topology = cell.branch(device), cell.zoo_topology()
    keras.utils.set_random_seed(cell.seed)
    if cell.options.weak_model and cell.options.strong_model:
        pair = cell.options.weak_model, cell.options.strong_model
        branch = own_branches(*pair, alone=cell.setting == ISOLATED)[topology, entry]()
    elif cell.options.task == NPZ:
        branch = _pair(image_shape, classes).branches()[topology, entry]()
    else:
        branch = zoo.build(cell.options.task, entry, topology)
    if not cell.branch_dropout:
        branch = without_branch_dropout(branch)
    return with_learning_rate(branch, cell.options.learning_rate)


def without_branch_dropout(branch: Branch) -> Branch:
    """Returns the branch with the same weights and without branch dropout, for the ablation."""

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if isinstance(layer, BranchDropout):
            config["rate"] = 0.0
        return type(layer).from_config(config)

    model = keras.models.clone_model(branch.model, clone_function=clone)
    model.set_weights(branch.model.get_weights())
    return replace(branch, model=model)


def _pair(image_shape: tuple[int, ...], classes: int) -> Pair:
    """Returns CIFAR-10's layers for images of another size and any number of classes."""
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
