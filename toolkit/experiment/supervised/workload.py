"""The workload of a supervised cell: labelled examples, divided between its devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from firmware_sim.tasks.labelled import Examples
from toolkit.experiment.scores import OnPoint
from toolkit.experiment.supervised.cell import CIFAR10, SupervisedCell
from toolkit.experiment.supervised.data import digest_of, read_task
from toolkit.experiment.supervised.download import DATA, fetch_cifar10
from toolkit.experiment.workload import Progress, Workload

if TYPE_CHECKING:
    from toolkit.experiment.supervised.device import SupervisedDevice


class SupervisedWorkload(Workload):
    """The examples of the cell's task."""

    def __init__(self, cell: SupervisedCell, data: Path | None) -> None:
        self._cell = cell
        self._examples = _examples(cell, data)
        self.data_id = digest_of(self._examples)

    @classmethod
    def prepare(
        cls, cells: Sequence[SupervisedCell], data: Path | None, progress: Progress
    ) -> Path | None:
        for cell in {cell.options.task: cell for cell in cells}.values():
            if cell.options.task == CIFAR10 and data is None:
                data = fetch_cifar10(DATA, progress)
            progress("reading the data")
            _examples(cell, data)
            read_task.cache_clear()  # cells are run in other processes, which read it themselves
        return data

    def make_device(
        self, name: str, state: Path, log: TextIO, on_point: OnPoint
    ) -> SupervisedDevice:
        from toolkit.experiment.supervised.device import SupervisedDevice

        return SupervisedDevice(self._cell, self._examples, state, name, log, on_point)


def _examples(cell: SupervisedCell, data: Path | None) -> Examples:
    return read_task(cell.options.task, data, own_networks=cell.options.weak_model is not None)
