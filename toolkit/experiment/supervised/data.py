"""The examples of a study, read once in each process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from firmware_sim.bundle.target import A_CLASS
from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.cifar10 import read_cifar10
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tasks.labelled import Examples, check_examples
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.task_state import arrays_digest
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import check_known
from toolkit.experiment.supervised.cell import CIFAR10, DIGITS, TASKS


@lru_cache(maxsize=1)
def read_task(task: str, data: Path | None, *, own_networks: bool = False) -> Examples:
    """Returns the examples; raises a StemshareError if there are none.

    With the user's own networks they may be anything that these learn (`own_networks.fitted`);
    otherwise they are uint8 images with labels 0, 1, 2, …
    """
    check_known("task", [task], TASKS)
    if task == DIGITS:
        return read_digits()
    if data is None:
        raise ExperimentError(f"the task {task} needs --data.")
    if task == CIFAR10:
        return read_cifar10(data)
    found = read_examples(data)
    if own_networks:
        return found
    _check_images(data, found)
    x = TensorSpec(found.x_train.shape[1:], found.x_train.dtype)
    return check_examples(str(data), found, x, A_CLASS)


def digest_of(examples: Examples) -> str:
    """Returns a digest that differs for different examples."""
    return arrays_digest(examples.x_train, examples.y_train, examples.x_test, examples.y_test).hex()


def _check_images(file: Path, found: Examples) -> None:
    for part, images in (("train", found.x_train), ("test", found.x_test)):
        if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
            raise ExperimentError(
                f"{file} holds {images.dtype}{list(images.shape)} to {part} with; a study needs "
                "uint8 images [count, height, width, channels]."
            )
