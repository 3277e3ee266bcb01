"""Runs one cell with the product's own agents, coordinator and wire format.

It may be killed at any moment. The devices and the aggregator of a supervised cell write a
checkpoint after every round, an unfinished round is trained again, and every round has its own
stream of random numbers: the same call then gives exactly the numbers of a run without a kill.
A cell of players starts again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from broker.durable import claim
from broker.log import Log
from broker.protocol.slice import Tensors, json_digest, union
from broker.transport.address import Address
from firmware_sim.training.rounds import train_alone
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ISOLATED, Cell
from toolkit.experiment.device import StudyDevice
from toolkit.experiment.running.kinds import open_workload
from toolkit.experiment.running.provenance import provenance
from toolkit.experiment.running.results import Result, ResultWriter, known_result
from toolkit.experiment.scores import OnPoint, Point
from toolkit.experiment.workload import Workload
from toolkit.fleet.in_one_process import Fleet, Member, in_memory, over_mqtt, run_fleet


def run_cell(
    cell: Cell,
    out: Path,
    data: Path | None,
    *,
    broker: Address | None = None,
    on_point: OnPoint = lambda point: None,
) -> Result[Cell]:
    """Returns the results of the cell, which are also in its file below `out`.

    `on_point` is called with every new point. Without a `broker`, devices and aggregator use one
    in memory.
    """
    known = known_result(out, cell)
    if known is None or not known.finished:
        workload = open_workload(cell, data)
        if known is not None and known.header["data"] != workload.data_id:
            raise ExperimentError(f"{cell.name} was begun with other data; give another --out.")
        _run(cell, workload, out, broker, on_point)
        known = known_result(out, cell)
    assert known is not None
    return known


def _run(
    cell: Cell, workload: Workload, out: Path, broker: Address | None, on_point: OnPoint
) -> None:
    begin = time.monotonic()
    state = out / "state" / cell.name  # removed when the cell is finished
    state.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        lock = claim(state)
        if lock is None:
            raise ExperimentError(f"another process is running the cell in {state}.")
        stack.enter_context(lock)
        aggregator = state / "aggregator"
        if not cell.resumes:
            shutil.rmtree(aggregator, ignore_errors=True)
        writer = ResultWriter(out, cell, data=workload.data_id, **provenance())
        stack.enter_context(writer)

        def write_point(point: Point) -> None:
            writer.point(point)
            on_point(point)

        devices = []
        for name in cell.devices:
            log = stack.enter_context((state / f"{name}.jsonl").open("a", encoding="utf-8"))
            devices.append(workload.make_device(name, state, log, write_point))
        if cell.setting == ISOLATED:
            for device in devices:
                train_alone(device.rounds, cell.rounds(device.name))
        else:
            log = stack.enter_context((state / "aggregator.jsonl").open("a", encoding="utf-8"))
            _train_together(cell, devices, aggregator, Log(log), broker)
        for device in devices:
            writer.final(device.final())
        writer.finish(time.monotonic() - begin)
    shutil.rmtree(state)


def fleet_name(cell: Cell) -> str:
    """Returns the name of its fleet: several cells may use the same broker."""
    return f"cell-{json_digest(cell.name)[:16]}"


def _train_together(
    cell: Cell, devices: Sequence[StudyDevice], folder: Path, log: Log, broker: Address | None
) -> None:
    start: Tensors = {}
    for device in devices:
        start = device.start | start
    merging = cell.merging
    fleet = Fleet(
        name=fleet_name(cell),
        members=[Member(d.name, d.rounds, d.shared, d.log) for d in devices],
        known=union(device.shared for device in devices),
        start=start,
        rounds=merging.merges,
        folder=folder,
        log=log,
        mode=merging.mode,
        merge=merging.rule,
        optimizer=merging.optimizer,
    )
    run_fleet(fleet, over_mqtt(broker) if broker else in_memory())
