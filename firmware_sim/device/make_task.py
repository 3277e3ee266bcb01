"""The tasks that a device can train on; `make_task` makes any of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import TaskError
from firmware_sim.playing.options import PlayerOptions
from firmware_sim.playing.player import make_player
from firmware_sim.tasks import cifar10, digits
from firmware_sim.tasks.anomaly import QUANTILE, check_quantile
from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.labelled import (
    LabelledTask,
    check_examples,
    check_kind,
    normalised,
    own_share,
)
from firmware_sim.training.features import cache_for
from firmware_sim.training.task import Task

GAMES = ("atari", "minatar", "cartpole", "play")
STREAM = "stream"  # examples that come while it runs (`assembly.py`)
TASKS = ("digits", "npz", "cifar10", *GAMES)


@dataclass(frozen=True, kw_only=True)
class TaskOptions(PlayerOptions):
    """What a user may choose about any task; each task reads the part that concerns it."""

    data: Path | None = None  # npz: a file; cifar10: a folder
    features_folder: Path | None = None  # where features of frozen layers are kept; None: nowhere
    share: tuple[float, float] = (0.0, 1.0)  # begin and end of the device's part of the data
    anomaly_quantile: float = QUANTILE  # of the scores on the test set: what is above is anomalous

    def __post_init__(self) -> None:
        start, stop = self.share
        if not 0 <= start < stop <= 1:
            raise TaskError(
                f"the share {start}:{stop} must run upwards between 0 and 1, as 0:0.2 does."
            )
        check_quantile(self.anomaly_quantile)
        super().__post_init__()


def make_task(name: str, bundle: Bundle, options: TaskOptions) -> Task:
    """Returns the named task for a bundle; raises before data are read if they do not fit."""
    if name in GAMES:
        _no_data(name, options)
        if options.share != (0, 1):
            raise TaskError(f"the task {name} has no examples to take a share of.")
        return make_player(name, bundle, options)
    match name:
        case "digits":
            _no_data(name, options)
            target = check_kind(name, bundle, digits.EXAMPLE)
            source, examples = "the package", digits.read_digits()
        case "npz":
            target = check_kind(name, bundle)
            data = _data(name, options, "a .npz file with x_train, y_train, x_test and y_test")
            source, examples = str(data), read_examples(data)
        case "cifar10":
            target = check_kind(name, bundle, cifar10.EXAMPLE)
            data = _data(name, options, "CIFAR-10's archive, or the folder with its batches")
            # No more than the share is ever in memory.
            source, examples = str(data), cifar10.read_cifar10(data, options.share)
        case _:
            raise TaskError(f"there is no task {name!r}; there are {', '.join(TASKS)}.")
    found = check_examples(source, examples, bundle.training_inputs["x"].of_one, target)
    found = normalised(found, bundle.manifest.normalisation)
    own = found if name == "cifar10" else own_share(found, options.share)
    return LabelledTask(
        own,
        batch=bundle.manifest.batch_size,
        seed=options.seed,
        target=target,
        quantile=options.anomaly_quantile,
        cache=cache_for(bundle.manifest, options.features_folder, len(own.x_train)),
    )


def _data(name: str, options: TaskOptions, what: str) -> Path:
    if options.data is None:
        raise TaskError(f"the task {name} needs data: {what}.")
    return options.data


def _no_data(name: str, options: TaskOptions) -> None:
    if options.data is not None:
        raise TaskError(f"the task {name} brings its own data and takes no {options.data}.")
