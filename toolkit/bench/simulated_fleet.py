"""Many simulated devices: real agents, broker and aggregator, with a learner that takes no time."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from broker.aggregator.slice_file import read_slice
from broker.log import Log
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import Topics
from broker.transport.address import Address
from broker.transport.channel import Channel
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Will
from firmware_sim.device.build import make_agent
from firmware_sim.tensor_spec import Array
from firmware_sim.training.checkpoint import Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.fleet.processes import Child, stopping

_LIMIT = 64 * 2**20  # bytes of a message
_POLL_SECONDS = 0.05
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rates:
    """The measurements of a run of simulated devices; memory is the aggregator's."""

    devices: int
    rounds: int
    seconds: float
    round_seconds: float  # median
    merge_seconds: float  # of a round, including the checks
    resident_bytes: list[int]  # samples after the first tenth of the rounds
    peak_bytes: int


class _Task:
    samples = 100


class SimulatedLearner(Learner):
    """Returns the same change in every round."""

    def __init__(self, shared: Slice, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.change = {
            t.name: rng.standard_normal(t.shape, dtype=np.float32) for t in shared.tensors
        }
        self.adopted: Tensors = {}
        self.task = _Task()  # type: ignore[assignment]
        self._shared = shared

    def adopt(self, tensors: Tensors) -> None:
        self.adopted = tensors

    def shared(self) -> Tensors:
        return self.adopted

    def train(self, steps: int, exchange: str) -> Iterator[float]:
        return iter([0.0] * steps)

    def learnt(self, base: Tensors, exchange: str) -> Tensors:
        return self.change

    def evaluate(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Array]:
        return {}


def run_simulated(
    folder: Path, shapes: Shapes, broker: Address, *, devices: int, rounds: int
) -> Rates:
    """Runs a fleet from the first birth message to the last round."""
    folder.mkdir(parents=True)
    file = folder / "shared.onnx"
    write_slice(file, shapes)
    shared, start = read_slice(file)
    arguments = ["--slice", str(file), "--broker", str(broker), "--fleet", folder.name]
    arguments += ["--quorum", str(devices), "--rounds", str(rounds), "--deadline", "600"]
    arguments += ["--state", str(folder / "aggregator")]
    children: list[Child] = []
    learners = [SimulatedLearner(shared, seed) for seed in range(devices)]
    with stopping(children):
        log = folder / "aggregator.jsonl"
        children.append(Child("the aggregator", "broker.aggregator", arguments, log))
        begin = time.perf_counter()
        threads = [
            threading.Thread(target=_live, args=(f"sim-{k}", learner, shared, broker, folder))
            for k, learner in enumerate(learners)
        ]
        for thread in threads:
            thread.start()
        events, resident, peak = _watch(children[0], rounds)
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begin
    _check(learners, start, rounds)
    ends = [datetime.fromisoformat(e["time"]) for e in events if e["event"] == "merged"]
    counters = next(event for event in events if event["event"] == "counters")
    return Rates(
        devices=devices,
        rounds=rounds,
        seconds=seconds,
        round_seconds=statistics.median((b - a).total_seconds() for a, b in pairwise(ends)),
        merge_seconds=counters["merge_seconds"] / rounds,
        resident_bytes=resident,
        peak_bytes=peak,
    )


def write_slice(file: Path, shapes: Shapes) -> None:
    """Writes a slice whose graph passes every tensor on; there is no network."""
    tensors = [numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in shapes.items()]
    outputs = [
        helper.make_tensor_value_info(f"{n}/out", onnx.TensorProto.FLOAT, s)
        for n, s in shapes.items()
    ]
    nodes = [helper.make_node("Abs", [n], [f"{n}/out"], name=n) for n in shapes]
    graph = helper.make_graph(nodes, "simulated", [], outputs, tensors)
    opset = [helper.make_opsetid("", 17)]
    file.write_bytes(helper.make_model(graph, opset_imports=opset).SerializeToString())


def _live(
    device: str, learner: SimulatedLearner, shared: Slice, broker: Address, folder: Path
) -> None:
    def open_channel(
        *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel:
        transport = MqttTransport(
            broker, client_id=client_id, subscriptions=subscriptions, will=will
        )
        return Channel(transport, limit=limit, held_limit=limit)

    with (folder / f"{device}.jsonl").open("w") as stream:
        log = Log(stream)
        checkpoints = Checkpoints(folder / device, device=device, bundle="simulated")
        agent = make_agent(
            device,
            Rounds(learner, checkpoints, Plan(steps=1), log),
            shared,
            topics=Topics(folder.name),
            open_channel=open_channel,
            limit=_LIMIT,
            log=log,
        )
        with contextlib.closing(agent):
            agent.run()
            agent.leave()


def _watch(aggregator: Child, rounds: int) -> tuple[list[dict[str, Any]], list[int], int]:
    """Returns the aggregator's events, samples of its resident memory, and its peak memory."""
    events: list[dict[str, Any]] = []
    resident: list[int] = []
    peak = 0
    running, seen = True, 0
    while running:
        time.sleep(_POLL_SECONDS)
        running = aggregator.running
        aggregator.check()
        new = aggregator.events()
        events += new
        seen += sum(event["event"] == "merged" for event in new)
        if running and (found := memory_of(aggregator.pid)):
            peak = found[1]
            resident += [found[0]] if seen >= rounds / 10 else []
    return events, resident, peak


def memory_of(process: int) -> tuple[int, int] | None:
    """Returns resident bytes of a process now and at most so far; None once it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        values = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
        if values:  # a process that has ended has no such lines
            return int(values["VmRSS"]) * 1024, int(values["VmHWM"]) * 1024
    return None


def _check(learners: list[SimulatedLearner], start: Tensors, rounds: int) -> None:
    """Checks that every device ends with θ + rounds · mean of the changes."""
    for name, first in start.items():
        mean = np.mean([learner.change[name].astype(np.float64) for learner in learners], axis=0)
        for learner in learners:
            np.testing.assert_allclose(
                learner.adopted[name], first + rounds * mean, rtol=1e-3, atol=1e-4
            )
