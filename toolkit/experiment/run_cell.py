"""Runs one cell: the devices of a mode, with the product's own agents, coordinator and wire.

It may be killed at any moment. Devices and aggregator write their checkpoints with every round,
half a round is trained again, and every round draws random numbers of its own: the same call
again gives, bit for bit, what it would have given without the kill.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from broker.durable import claim
from broker.log import Log
from broker.slice import Tensors, digest, union
from broker.slice_file import read_slice
from broker.transport import Address
from firmware_sim.checkpoint import Checkpoint, Checkpoints
from firmware_sim.isolated import train_alone
from firmware_sim.learner import Learner
from firmware_sim.rounds import Plan, Rounds
from firmware_sim.tasks.labelled import Examples
from toolkit.experiment.branches import build_branch
from toolkit.experiment.cell import POWERFUL, WEAK, Cell, ExperimentError
from toolkit.experiment.data import digest_of, read_task
from toolkit.experiment.engines import model_for
from toolkit.experiment.origin import origin
from toolkit.experiment.results import Final, Point, Result, ResultWriter, known_result
from toolkit.experiment.splits import Part, divide
from toolkit.experiment.task import StudyTask
from toolkit.export.onnx_slice import build_slice
from toolkit.fleet.in_one_process import NEVER, Fleet, Member, in_memory, over_mqtt, run_fleet

Heard = Callable[[Point], None]


def run_cell(
    cell: Cell,
    out: Path,
    data: Path | None,
    *,
    broker: Address | None = None,
    heard: Heard = lambda point: None,
) -> Result:
    """The results of the cell, which are also in their file; `heard` is told every new point.

    Without a `broker`, devices and aggregator meet at one in memory.
    """
    known = known_result(out, cell)
    if known is None or not known.finished:
        examples = read_task(cell.settings.task, data)
        about = {"data": digest_of(examples), **origin()}
        if known is not None and known.header["data"] != about["data"]:
            raise ExperimentError(f"{cell.name} was begun with other data; give another --out.")
        _run(cell, out, examples, about, broker, heard)
        known = known_result(out, cell)
    assert known is not None
    return known


def _run(
    cell: Cell,
    out: Path,
    examples: Examples,
    about: dict[str, object],
    broker: Address | None,
    heard: Heard,
) -> None:
    begin = time.monotonic()
    state = out / "state" / cell.name  # removed when the cell is finished
    state.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        lock = claim(state)
        if lock is None:
            raise ExperimentError(f"another process is running the cell in {state}.")
        stack.enter_context(lock)
        writer = stack.enter_context(ResultWriter(out, cell, **about))
        fractions = {WEAK: cell.weak_fraction, POWERFUL: 1 - cell.weak_fraction}
        parts = divide(examples.y_train, fractions, cell.settings.split, cell.seed)

        def tell(point: Point) -> None:
            writer.point(point)
            heard(point)

        devices = []
        for name in cell.devices:
            log = stack.enter_context((state / f"{name}.jsonl").open("a", encoding="utf-8"))
            devices.append(_Device(cell, name, examples, parts[name], state, log, tell))
        if cell.mode == "isolated":
            for device in devices:
                train_alone(device.rounds, cell.settings.rounds)
        else:
            log = stack.enter_context((state / "aggregator.jsonl").open("a", encoding="utf-8"))
            _learn_together(cell, devices, state, Log(log), broker)
        for device in devices:
            writer.final(device.final())
        writer.finish(time.monotonic() - begin)
    shutil.rmtree(state)


def _learn_together(
    cell: Cell, devices: list[_Device], state: Path, log: Log, broker: Address | None
) -> None:
    start: Tensors = {}
    for device in devices:
        start = device.start | start
    fleet = Fleet(
        name=f"cell-{digest(cell.name)[:16]}",  # cells may share a broker
        members=[Member(d.name, d.rounds, d.shared, d.log) for d in devices],
        known=union(device.shared for device in devices),
        start=start,
        rounds=cell.settings.rounds,
        folder=state / "aggregator",
        log=log,
    )
    run_fleet(fleet, over_mqtt(broker) if broker else in_memory())


class _Device:
    """One device of a cell, put together."""

    def __init__(
        self,
        cell: Cell,
        name: str,
        examples: Examples,
        part: Part,
        state: Path,
        log: TextIO,
        tell: Heard,
    ) -> None:
        settings = cell.settings
        classes = 1 + int(max(examples.y_train.max(), examples.y_test.max()))
        shape = examples.x_train.shape[1:]
        branch = build_branch(cell, name, image_shape=shape, classes=classes)
        self.name = name
        self.log = Log(log, as_json=True)
        self.shared, self.start = read_slice(build_slice(branch).SerializeToString())
        self._model = model_for(cell, name, branch)
        self._task = StudyTask(
            examples,
            part,
            steps=settings.steps,
            seed=2 * cell.seed + (name == POWERFUL),
            test_rounds={*range(0, settings.rounds, settings.test_every), settings.rounds},
            validate_on=settings.validate_on,
            tell=lambda round, scores: tell(Point(name, round, **scores)),
        )
        self.rounds = Rounds(
            Learner(self._model, self._task, self.shared),
            _WholeRounds(state / name, device=name, bundle=cell.name),
            Plan(settings.steps, checkpoint_seconds=NEVER, resend_seconds=NEVER),
            self.log,
        )

    def final(self) -> Final:
        """To be called after the last round."""
        task = self._task
        task.take_best(self._model)
        return Final(self.name, task.best_round, task.best_accuracy, task.test(self._model))


class _WholeRounds(Checkpoints):
    """Keeps no half-trained round: where its random numbers were would be unknown."""

    def save(self, checkpoint: Checkpoint) -> None:
        if checkpoint.outbox or not checkpoint.steps_done:
            super().save(checkpoint)
