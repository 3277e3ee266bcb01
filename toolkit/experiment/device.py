"""One device of a cell: the part that does not depend on what it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TextIO

from broker.aggregator.slice_file import read_slice
from broker.log import Log
from firmware_sim.training.rounds import Rounds
from toolkit.branch.branch import Branch
from toolkit.experiment.cell import Cell
from toolkit.experiment.engines.models import model_for
from toolkit.experiment.scores import Final
from toolkit.export.onnx.slice import build_slice


class StudyDevice(ABC):
    """A branch with its weights, the slice that it shares, and the rounds that train it."""

    rounds: Rounds  # the same class as on a real device

    def __init__(self, cell: Cell, name: str, branch: Branch, log: TextIO) -> None:
        self.name = name
        self.log = Log(log, as_json=True)
        self.shared, self.start = read_slice(build_slice(branch).SerializeToString())
        self.model = model_for(cell, name, branch)

    @abstractmethod
    def final(self) -> Final:
        """Returns the final scores; to be called after the last round."""
