"""The branches of a supervised study: the zoo's, with the options of the cell."""

from __future__ import annotations

from dataclasses import replace

import keras

from toolkit import zoo
from toolkit.branch.branch import Branch, sharing_everything
from toolkit.branch.layers import BranchDropout
from toolkit.branch.learning import Supervised
from toolkit.branch.learning_rate import with_learning_rate
from toolkit.branch.optimizers import RMSProp
from toolkit.branch.user_model import load_branch
from toolkit.errors import ExperimentError
from toolkit.experiment.supervised.cell import NPZ, SupervisedCell
from toolkit.zoo import cifar10
from toolkit.zoo.pair import Build, Pair, topologies

SMALLEST_IMAGE = 12  # pixels; the strides of CIFAR-10's complex branch need that many


def supervised_branch(
    cell: SupervisedCell, device: str, *, image_shape: tuple[int, ...], classes: int
) -> Branch:
    """Returns the branch of a device; its random weights are drawn with the cell's seed."""
    entry, topology = cell.branch(device), cell.zoo_topology()
    keras.utils.set_random_seed(cell.seed)
    if cell.options.weak_model and cell.options.strong_model:
        branch = own_branches(cell.options.weak_model, cell.options.strong_model)[topology, entry]()
        check_classifier(branch, image_shape, classes)
    elif cell.options.task == NPZ:
        branch = _pair(image_shape, classes).branches()[topology, entry]()
    else:
        branch = zoo.build(cell.options.task, entry, topology)
    if not cell.branch_dropout:
        branch = without_branch_dropout(branch)
    return with_learning_rate(branch, cell.options.learning_rate)


def own_branches(weak: str, strong: str) -> dict[tuple[str, str], Build]:
    """Returns how to build each branch of a user's pair, by topology and branch.

    In share-first the pair shares the layers that both have, with the same name and shapes.
    """

    def share_first(spec: str) -> Branch:
        return replace(load_branch(spec), shared_layers=common_layers(weak, strong))

    return topologies(lambda: share_first(weak), lambda: share_first(strong))


def common_layers(weak: str, strong: str) -> tuple[str, ...]:
    """Returns the names of the layers whose weights have the same names and shapes in both."""
    ours, theirs = (sharing_everything(load_branch(spec)) for spec in (weak, strong))
    shapes = [{n: v.shape for n, v in branch.weights().items()} for branch in (ours, theirs)]

    def agrees(layer: str) -> bool:
        own = [{n: s for n, s in found.items() if layer in n.split("/")[:-1]} for found in shapes]
        return bool(own[0]) and own[0] == own[1]

    found = tuple(name for name in ours.shared_layers if agrees(name))
    if not found:
        raise ExperimentError(
            f"{weak} and {strong} have no layer in common, by name and shape; give the layers that "
            "they begin with the same names."
        )
    return found


def check_classifier(branch: Branch, shape: tuple[int, ...], classes: int) -> None:
    """Raises an ExperimentError if a user's network does not fit his data."""
    outputs = branch.model.output_shape[-1]
    if branch.input_shape != shape or outputs < classes:
        raise ExperimentError(
            f"{branch.name} takes {list(branch.input_shape)} and tells {outputs} classes apart; "
            f"the data have examples of {list(shape)} and {classes} classes."
        )


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
