"""Runs one cell: the devices of a mode, with the product's own agents, coordinator and wire.

It may be killed at any moment. In a supervised cell devices and aggregator write their checkpoints
with every round, half a round is trained again, and every round draws random numbers of its own:
the same call again gives, bit for bit, what it would have given without the kill. The cell of a
player starts from its beginning.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from broker.durable import claim
from broker.log import Log
from broker.protocol.slice import Tensors, json_digest, union
from broker.transport.address import Address
from firmware_sim.device.isolated import train_alone
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.device import StudyDevice, Tell
from toolkit.experiment.players.cell import RlCell
from toolkit.experiment.players.device import RlDevice, turns_of
from toolkit.experiment.running.provenance import origin
from toolkit.experiment.running.results import Point, Result, ResultWriter, known_result
from toolkit.experiment.supervised.cell import SupervisedCell
from toolkit.experiment.supervised.data import digest_of, read_task
from toolkit.experiment.supervised.device import SupervisedDevice
from toolkit.fleet.in_one_process import Fleet, Member, in_memory, over_mqtt, run_fleet


def run_cell(
    cell: Cell,
    out: Path,
    data: Path | None,
    *,
    broker: Address | None = None,
    heard: Tell = lambda point: None,
) -> Result[Cell]:
    """The results of the cell, which are also in their file; `heard` is told every new point.

    Without a `broker`, devices and aggregator meet at one in memory.
    """
    known = known_result(out, cell)
    if known is None or not known.finished:
        state = out / "state" / cell.name  # removed when the cell is finished
        kind = _kind(cell, data, state)
        if known is not None and known.header["data"] != kind.data:
            raise ExperimentError(f"{cell.name} was begun with other data; give another --out.")
        _run(cell, kind, out, state, broker, heard)
        known = known_result(out, cell)
    assert known is not None
    return known


@dataclass(frozen=True)
class _Kind:
    """What cells of one kind differ in from those of another."""

    data: str  # tells data sets apart
    make: Callable[[str, TextIO, Tell], StudyDevice]
    coordinator: str
    merge: str  # rule by which updates become one change
    merges: int


def _kind(cell: Cell, data: Path | None, state: Path) -> _Kind:
    if isinstance(cell, RlCell):
        player = partial(RlDevice, cell, turns_of(cell))
        return _Kind(cell.environment, player, cell.coordinator, "mean", cell.merges)
    assert isinstance(cell, SupervisedCell)
    examples = read_task(cell.settings.task, data)
    learner = partial(SupervisedDevice, cell, examples, state)
    return _Kind(digest_of(examples), learner, "sync", "samples", cell.settings.rounds)


def _run(
    cell: Cell,
    kind: _Kind,
    out: Path,
    state: Path,
    broker: Address | None,
    heard: Tell,
) -> None:
    begin = time.monotonic()
    state.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        lock = claim(state)
        if lock is None:
            raise ExperimentError(f"another process is running the cell in {state}.")
        stack.enter_context(lock)
        aggregator = state / "aggregator"
        if not cell.goes_on:
            shutil.rmtree(aggregator, ignore_errors=True)
        writer = stack.enter_context(ResultWriter(out, cell, data=kind.data, **origin()))

        def tell(point: Point) -> None:
            writer.point(point)
            heard(point)

        devices = []
        for name in cell.devices:
            log = stack.enter_context((state / f"{name}.jsonl").open("a", encoding="utf-8"))
            devices.append(kind.make(name, log, tell))
        if cell.mode == "isolated":
            for device in devices:
                train_alone(device.rounds, cell.settings.rounds)
        else:
            log = stack.enter_context((state / "aggregator.jsonl").open("a", encoding="utf-8"))
            _learn_together(cell, kind, devices, aggregator, Log(log), broker)
        for device in devices:
            writer.final(device.final())
        writer.finish(time.monotonic() - begin)
    shutil.rmtree(state)


def _learn_together(
    cell: Cell,
    kind: _Kind,
    devices: Sequence[StudyDevice],
    folder: Path,
    log: Log,
    broker: Address | None,
) -> None:
    start: Tensors = {}
    for device in devices:
        start = device.start | start
    fleet = Fleet(
        name=f"cell-{json_digest(cell.name)[:16]}",  # cells may share a broker
        members=[Member(d.name, d.rounds, d.shared, d.log) for d in devices],
        known=union(device.shared for device in devices),
        start=start,
        rounds=kind.merges,
        folder=folder,
        log=log,
        mode=kind.coordinator,
        merge=kind.merge,
    )
    run_fleet(fleet, over_mqtt(broker) if broker else in_memory())
