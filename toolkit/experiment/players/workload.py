"""The workload of a cell of players: a game."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from firmware_sim.playing.environments import make_environment
from toolkit.experiment.players.cell import ASYNC, PlayerCell
from toolkit.experiment.players.virtual_clock import VirtualClock
from toolkit.experiment.scores import OnPoint
from toolkit.experiment.workload import Progress, Workload

if TYPE_CHECKING:
    from toolkit.experiment.players.device import PlayerDevice


class PlayerWorkload(Workload):
    """The game of the cell; the devices of an asynchronous fleet share a virtual clock."""

    def __init__(self, cell: PlayerCell, data: Path | None) -> None:
        self._cell = cell
        self._clock = _clock(cell) if cell.mode == ASYNC else None
        self.data_id = cell.environment

    @classmethod
    def prepare(
        cls, cells: Sequence[PlayerCell], data: Path | None, progress: Progress
    ) -> Path | None:
        for environment in {cell.environment for cell in cells}:
            progress(f"opening {environment}")
            make_environment(environment, 1).close()
        return data

    def make_device(self, name: str, state: Path, log: TextIO, on_point: OnPoint) -> PlayerDevice:
        from toolkit.experiment.players.device import PlayerDevice

        return PlayerDevice(self._cell, self._clock, name, log, on_point)


def _clock(cell: PlayerCell) -> VirtualClock:
    """A round of a device lasts as long as its steps at the device's rate."""
    return VirtualClock(
        {
            device: (cell.steps(device) / cell.rate(device), cell.rounds(device))
            for device in cell.devices
        }
    )
