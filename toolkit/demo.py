"""A whole fleet on this machine: three devices learn digits alone, all alike, and unequally."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import keras
from rich.table import Table

from broker.transport import Address
from profiles import load_profile
from toolkit import zoo
from toolkit.calibration import calibration_for
from toolkit.export.bundle import export
from toolkit.export.writing import make_folder
from toolkit.fleet.figure import draw
from toolkit.fleet.local import Member, Point, Work, local_broker, run_fleet, run_isolated

MODES = ("isolated", "homogeneous", "heterogeneous")
# Profile of each device, and the part of the training data that it holds.
DEVICES = {
    "weak-1": ("weak", (0.0, 0.05)),
    "weak-2": ("weak", (0.05, 0.10)),
    "powerful-1": ("powerful", (0.10, 1.0)),
}
FIGURE = "demo.png"


class Board:
    """What is known so far: a curve for each mode and device, as a table for the terminal."""

    def __init__(self, rounds: int) -> None:
        self.stage = "starting"
        self.results: dict[str, dict[str, list[Point]]] = {}
        self._rounds = rounds

    def begin(self, mode: str) -> Callable[[Point], None]:
        curves = self.results.setdefault(mode, {device: [] for device in DEVICES})
        return lambda point: curves[point.device].append(point)

    def __rich__(self) -> Table:
        table = Table("device", "holds", *MODES, title=self.stage, title_justify="left")
        for device, (_, (start, stop)) in DEVICES.items():
            curves = [self.results.get(mode, {}).get(device, []) for mode in MODES]
            table.add_row(device, f"{stop - start:.0%} of the data", *map(self._cell, curves))
        return table

    def _cell(self, curve: Sequence[Point]) -> str:
        if not curve:
            return "…"
        last = curve[-1]
        mark = "" if last.round == self._rounds else f"   round {last.round}/{self._rounds}"
        return f"{last.accuracy:.1%}{mark}"


def run_demo(out: Path, board: Board, *, work: Work, embedded: bool) -> Path:
    """Exports, runs every mode with real processes, and draws the figure."""
    make_folder(out)
    bundles = {name: out / name for name in ("weak", "powerful")}
    for name, folder in bundles.items():
        board.stage = f"exporting the branch of the {name} devices"
        _export(name, folder)
    unequal = [
        Member(device, bundles[profile], share, seed)
        for seed, (device, (profile, share)) in enumerate(DEVICES.items())
    ]
    alike = [Member(m.name, bundles["weak"], m.share, m.seed) for m in unequal]
    runs = out / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    with local_broker(runs / "broker", embedded=embedded) as address:
        for mode, run in _modes(alike, unequal, address).items():
            board.stage = f"learning: {mode}"
            run(work, runs / mode, board.begin(mode))
    figure = out / FIGURE
    title = f"Digits: three devices, {work.rounds} rounds of {work.steps} mini-batches"
    draw(board.results, list(DEVICES), title, figure)
    board.stage = title
    return figure


Run = Callable[[Work, Path, Callable[[Point], None]], None]


def _modes(alike: list[Member], unequal: list[Member], broker: Address) -> dict[str, Run]:
    """isolated: nothing shared. homogeneous: everybody trains the lightweight branch and shares
    all of it. heterogeneous: everybody trains the branch that fits and shares what is common."""
    return {
        "isolated": partial(run_isolated, unequal),
        "homogeneous": partial(run_fleet, alike, broker=broker),
        "heterogeneous": partial(run_fleet, unequal, broker=broker),
    }


def _export(name: str, folder: Path) -> None:
    profile = load_profile(name)
    keras.utils.set_random_seed(0)
    branch = zoo.build("digits", profile.branch, "cascading")
    export(branch, profile, folder, calibration=calibration_for(branch, "digits", None))
