"""The examples of a study, read once in each process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.cifar10 import read_cifar10
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tasks.labelled import Examples
from firmware_sim.training.task_state import arrays_digest
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import check_known
from toolkit.experiment.supervised.cell import CIFAR10, DIGITS, TASKS


@lru_cache(maxsize=1)
def read_task(task: str, data: Path | None, *, own_networks: bool = False) -> Examples:
    """Returns examples and int32 labels; raises a StemshareError if there are none.

    With the user's own networks examples may be any numbers; otherwise they are uint8 images.
    """
    check_known("task", [task], TASKS)
    if task == DIGITS:
        return read_digits()
    if data is None:
        raise ExperimentError(f"the task {task} needs --data.")
    if task == CIFAR10:
        return read_cifar10(data)
    found = read_examples(data)
    if not own_networks:
        _check_images(data, found)
    return _checked(data, found)


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


def _checked(file: Path, found: Examples) -> Examples:
    """Returns the user's examples if they have labels 0, 1, 2, …"""
    for part in ("train", "test"):
        images, labels = getattr(found, f"x_{part}"), getattr(found, f"y_{part}")
        if not images.ndim or not len(images):
            raise ExperimentError(f"{file} holds no examples to {part} with.")
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or labels.min() < 0:
            raise ExperimentError(
                f"{file} holds {labels.dtype}{list(labels.shape)} as labels to {part} with; a "
                f"study needs {len(images)} whole numbers from 0."
            )
    if found.x_train.shape[1:] != found.x_test.shape[1:]:
        raise ExperimentError(f"{file} holds images of two sizes.")
    y_train, y_test = found.y_train.astype(np.int32), found.y_test.astype(np.int32)
    return Examples(found.x_train, y_train, found.x_test, y_test)
