"""One device of a cell, put together: what the runner needs of it, whatever it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TextIO

from broker.aggregator.slice_file import read_slice
from broker.log import Log
from firmware_sim.training.rounds import Rounds
from toolkit.branch.branch import Branch
from toolkit.experiment.cell import Cell
from toolkit.experiment.engines.models import model_for
from toolkit.experiment.running.results import Final, Point
from toolkit.export.onnx.slice import build_slice

Tell = Callable[[Point], None]


class StudyDevice(ABC):
    """A branch with its weights, its part of the slice, and how it is trained."""

    rounds: Rounds  # the product's own, which the runner trains

    def __init__(self, cell: Cell, name: str, branch: Branch, log: TextIO) -> None:
        self.name = name
        self.log = Log(log, as_json=True)
        self.shared, self.start = read_slice(build_slice(branch).SerializeToString())
        self.model = model_for(cell, name, branch)

    @abstractmethod
    def final(self) -> Final:
        """To be called after the last round."""
