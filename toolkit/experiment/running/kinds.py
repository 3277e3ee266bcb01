"""The kinds of cells: which class reads a cell, and which workload runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.experiment.cell import Cell
from toolkit.experiment.players import cell as players
from toolkit.experiment.players.workload import PlayerWorkload
from toolkit.experiment.supervised import cell as supervised
from toolkit.experiment.supervised.workload import SupervisedWorkload
from toolkit.experiment.workload import Progress, Workload

CELLS: Mapping[str, type[Cell]] = {
    **dict.fromkeys(supervised.TASKS, supervised.SupervisedCell),
    **dict.fromkeys(players.TASKS, players.PlayerCell),
}
WORKLOADS: Mapping[type[Cell], type[Workload]] = {
    supervised.SupervisedCell: SupervisedWorkload,
    players.PlayerCell: PlayerWorkload,
}


def read_cell(stated: dict[str, Any]) -> Cell:
    """Returns the cell that a result file states."""
    return CELLS[stated["settings"]["task"]].from_json(stated)


def open_workload(cell: Cell, data: Path | None) -> Workload:
    """Returns what the devices of the cell train on."""
    return WORKLOADS[type(cell)](cell, data)


def prepare_workloads(cells: Sequence[Cell], data: Path | None, progress: Progress) -> Path | None:
    """Checks that all cells can be run; returns the data that they need."""
    for kind, workload in WORKLOADS.items():
        if own := [cell for cell in cells if type(cell) is kind]:
            data = workload.prepare(own, data, progress)
    return data
