"""The examples of a study, read once in each process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.cifar10 import read_cifar10
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tasks.labelled import Examples
from firmware_sim.tasks.state import arrays_digest
from toolkit.errors import ExperimentError
from toolkit.experiment.supervised.cell import TASKS


@lru_cache(maxsize=1)
def read_task(task: str, data: Path | None) -> Examples:
    """uint8 images and int32 labels."""
    try:
        match task:
            case "digits":
                return read_digits()
            case "cifar10" if data is not None:
                return read_cifar10(data)
            case "npz" if data is not None:
                return _checked(data, read_examples(data))
    except TaskError as error:
        raise ExperimentError(str(error)) from None
    if task in TASKS:
        raise ExperimentError(f"the task {task} needs --data.")
    raise ExperimentError(f"there is no task {task!r}; there are {', '.join(TASKS)}.")


def digest_of(examples: Examples) -> str:
    """Tells data sets apart."""
    return arrays_digest(examples.x_train, examples.y_train, examples.x_test, examples.y_test).hex()


def _checked(file: Path, found: Examples) -> Examples:
    """The user's own, if they are images with labels 0, 1, 2, …"""
    for part in ("train", "test"):
        images, labels = getattr(found, f"x_{part}"), getattr(found, f"y_{part}")
        if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
            raise ExperimentError(
                f"{file} holds {images.dtype}{list(images.shape)} to {part} with; a study needs "
                "uint8 images [count, height, width, channels]."
            )
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or labels.min() < 0:
            raise ExperimentError(
                f"{file} holds {labels.dtype}{list(labels.shape)} as labels to {part} with; a "
                f"study needs {len(images)} whole numbers from 0."
            )
    if found.x_train.shape[1:] != found.x_test.shape[1:]:
        raise ExperimentError(f"{file} holds images of two sizes.")
    y_train, y_test = found.y_train.astype(np.int32), found.y_test.astype(np.int32)
    return Examples(found.x_train, y_train, found.x_test, y_test)
