"""What the devices of a cell train on: the one question whose answer depends on the kind of study.

`supervised/workload.py` and `players/workload.py` answer it; the runner knows only this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from toolkit.experiment.scores import OnPoint

if TYPE_CHECKING:  # it loads TensorFlow
    from toolkit.experiment.device import StudyDevice

Progress = Callable[[str], None]


class Workload(ABC):
    """The examples or the game of one cell, opened in the process that runs the cell."""

    data_id: str  # identifies the examples or the game: a cell is not resumed with others

    @abstractmethod
    def __init__(self, cell: Any, data: Path | None) -> None:
        """Opens the data of a cell of the workload's own kind."""

    @classmethod
    @abstractmethod
    def prepare(cls, cells: Sequence[Any], data: Path | None, progress: Progress) -> Path | None:
        """Checks once, before a study starts, that its cells can be run; returns their data.

        Raises a StemshareError if a data set or a game is missing or unsuitable.
        """

    @abstractmethod
    def make_device(self, name: str, state: Path, log: TextIO, on_point: OnPoint) -> StudyDevice:
        """Returns the device called `name`, which keeps its checkpoints below `state`."""
