"""The branches of a study: the zoo's, with the cell's seed, learning rate and branch dropout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras

from toolkit import zoo
from toolkit.branch import Branch
from toolkit.experiment.cell import Cell, ExperimentError
from toolkit.layers import BranchDropout
from toolkit.training.learning import Supervised
from toolkit.training.optimizers import RMSProp
from toolkit.zoo import cifar10
from toolkit.zoo.pair import Pair

NPZ = "npz"
SMALLEST_IMAGE = 12  # pixels; CIFAR-10's complex branch leaves nothing of a smaller one


def build_branch(cell: Cell, device: str, *, image_shape: tuple[int, ...], classes: int) -> Branch:
    """The branch of a device, its random weights drawn with the cell's seed."""
    kind, topology = cell.branch(device)
    keras.utils.set_random_seed(cell.seed)
    if cell.settings.task == NPZ:
        branch = _pair(image_shape, classes).branches()[topology, kind]()
    else:
        branch = zoo.build(cell.settings.task, kind, topology)
    if not cell.branch_dropout:
        branch = without_branch_dropout(branch)
    if cell.settings.learning_rate is not None:
        rate: Any = {"learning_rate": cell.settings.learning_rate}
        optimizer = replace(branch.learning.optimizer, **rate)  # type: ignore[type-var]
        branch = replace(branch, learning=replace(branch.learning, optimizer=optimizer))
    return branch


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
