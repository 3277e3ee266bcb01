"""`toolkit bench fleet`: the costs of a fleet, compared with lower bounds.

    path     an update's way through codec, checks and merge, in one thread, as a ratio to the plain
             numpy addition of the same bytes and to plain paho–mosquitto transport of the payload
    round    200 simulated devices in one round: real agents, mosquitto and aggregator
    memory   the aggregator over 1,000 rounds

Simulated devices are real agents whose learner returns constant changes, so training is not
measured. Ratios are taken within one repetition, and medians over repetitions.
"""

from __future__ import annotations

import contextlib
import platform
import queue
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from rich.table import Table

from broker.aggregator.contract import Contract
from broker.brokers.mosquitto_process import Mosquitto
from broker.merging.coordinator import Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Delta
from broker.merging.synchronous import Synchronous
from broker.protocol.messages import Update, to_bytes
from broker.protocol.slice import SharedTensor, Slice, Tensors
from broker.transport.address import Address
from toolkit.bench.contest import Progress
from toolkit.bench.simulated_fleet import Rates, run_simulated
from toolkit.errors import ToolkitError

# The Atari stem, and everything that the Atari pair's complex branch trains.
STEM = {
    "stem_conv1/kernel": (8, 8, 4, 32),
    "stem_conv1/bias": (32,),
    "stem_conv2/kernel": (4, 4, 32, 64),
    "stem_conv2/bias": (64,),
}
WHOLE = STEM | {
    "conv3/kernel": (3, 3, 64, 64),
    "conv3/bias": (64,),
    "hidden/kernel": (3136, 512),
    "hidden/bias": (512,),
    "output/kernel": (512, 6),
    "output/bias": (6,),
}
SLICES = {"Atari stem": STEM, "whole complex branch": WHOLE}
UPDATES = {"Atari stem": 128, "whole complex branch": 16}  # in a repetition, and in its round
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class UpdatePath:
    """Seconds for one update."""

    encode: float
    check: float
    merge: float
    add: float  # the plain numpy addition of the same bytes
    transport: float  # plain paho–mosquitto–paho


def run_bench(
    folder: Path, *, repetitions: int, devices: int, rounds: int, progress: Progress
) -> dict[str, Any]:
    paths, simulated = {}, {}
    with Mosquitto(folder / "mosquitto") as broker:
        for name in SLICES:
            paths[name] = _measure_path(name, repetitions, broker.address, progress)
        progress(f"{devices} devices in one round")
        simulated["round"] = run_simulated(
            folder / "round", STEM, broker.address, devices=devices, rounds=3
        )
        progress(f"{rounds} rounds of 4 devices")
        simulated["memory"] = run_simulated(
            folder / "memory", STEM, broker.address, devices=4, rounds=rounds
        )
    return {
        "machine": platform.processor() or platform.machine(),
        "repetitions": repetitions,
        "bytes": {name: _bytes(shapes) for name, shapes in SLICES.items()},
        "paths": {name: [asdict(path) for path in found] for name, found in paths.items()},
        **{name: asdict(found) for name, found in simulated.items()},
    }


def known(shapes: dict[str, tuple[int, ...]]) -> Slice:
    return Slice.of(SharedTensor.of(name, shape, "float32", "") for name, shape in shapes.items())


def _bytes(shapes: dict[str, tuple[int, ...]]) -> int:
    return 4 * sum(int(np.prod(shape)) for shape in shapes.values())


def _measure_path(
    name: str, repetitions: int, broker: Address, progress: Progress
) -> list[UpdatePath]:
    shapes = SLICES[name]
    tensors = _random(shapes, seed=1)
    contract = Contract.of(known(shapes), exchange="delta", run="bench")
    count = UPDATES[name]
    updates = [_update(f"device-{k}", tensors, contract) for k in range(count)]
    payloads = [to_bytes(update) for update in updates]

    def encode() -> None:
        for update in updates:
            to_bytes(update)

    def check() -> list[Update]:
        return [contract.check_update(sent, f"device-{k}") for k, sent in enumerate(payloads)]

    checked = check()

    found = []
    with contextlib.closing(_PlainLink(broker)) as link:
        for repetition in range(repetitions):
            progress(f"{name}: repetition {repetition + 1} of {repetitions}")
            found.append(
                UpdatePath(
                    encode=_per_update(count, encode),
                    check=_per_update(count, check),
                    merge=_per_update(count, lambda: _merge(checked, shapes)),
                    add=_add(tensors, count),
                    transport=link.seconds_for(payloads),
                )
            )
    return found


def _update(device: str, tensors: Tensors, contract: Contract) -> Update:
    return Update(
        device=device,
        run=contract.run,
        round=0,
        nonce="0" * 32,
        samples=100,
        exchange=contract.exchange,
        fingerprint=contract.fingerprint,
        tensors=tensors,
    )


def _merge(updates: list[Update], shapes: dict[str, tuple[int, ...]]) -> None:
    """Runs a round of a synchronous coordinator; the merge at its end counts for all updates."""
    zeros: Tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    settings = Settings(mode="sync", merge=MergeRule("samples"), optimizer=Delta())
    coordinator = Synchronous(settings, State("bench", 0, zeros, {}), 0.0)
    for update in updates:
        coordinator.offer(update)
    coordinator.close(0.0)


def _add(tensors: Tensors, count: int) -> float:
    totals = [np.zeros_like(tensor) for tensor in tensors.values()]

    def add() -> None:
        for _ in range(count):
            for total, tensor in zip(totals, tensors.values(), strict=True):
                np.add(total, tensor, out=total)

    add()
    return _per_update(count, add)


def _per_update(count: int, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) / count


def _random(shapes: dict[str, tuple[int, ...]], *, seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(shape, dtype=np.float32) for n, shape in shapes.items()}


class _PlainLink:
    """paho alone: a publisher and a subscriber of the same topic."""

    def __init__(self, broker: Address) -> None:
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        subscribed = threading.Event()
        self._subscriber, self._publisher = (
            mqtt.Client(CallbackAPIVersion.VERSION2, f"bench-{role}", protocol=mqtt.MQTTv5)
            for role in ("subscriber", "publisher")
        )
        self._subscriber.on_message = lambda _c, _u, message: self._arrived.put(
            len(message.payload)
        )
        self._subscriber.on_subscribe = lambda *_: subscribed.set()
        for client in (self._subscriber, self._publisher):
            client.connect(broker.host, broker.port)
            client.loop_start()
        self._subscriber.subscribe("bench", qos=1)
        if not subscribed.wait(_WAIT_SECONDS):
            raise TimeoutError("the broker does not answer")

    def seconds_for(self, payloads: list[bytes]) -> float:
        """Returns the seconds per payload, from the first publication to the last arrival."""
        begin = time.perf_counter()
        for payload in payloads:
            self._publisher.publish("bench", payload, qos=1)
        for payload in payloads:
            if self._arrived.get(timeout=_WAIT_SECONDS) != len(payload):
                raise ToolkitError("the bare transport mixed up its payloads")
        return (time.perf_counter() - begin) / len(payloads)

    def close(self) -> None:
        for client in (self._publisher, self._subscriber):
            client.disconnect()
            client.loop_stop()


def tables(report: dict[str, Any]) -> list[Table | str]:
    path = Table(
        "slice", "size", "encode", "check", "merge", "updates/s", "× bare add", "of bare MQTT"
    )
    for name, runs in report["paths"].items():
        total = [run["encode"] + run["check"] + run["merge"] for run in runs]
        path.add_row(
            name,
            f"{report['bytes'][name] / 1e6:.2f} MB",
            *(f"{_median(runs, part) * 1e3:.3f} ms" for part in ("encode", "check", "merge")),
            f"{1 / statistics.median(total):,.0f}",
            f"{_ratio(total, runs, 'add'):.1f}",
            f"{_ratio(total, runs, 'transport'):.0%}",
        )
    full, long = (Rates(**report[name]) for name in ("round", "memory"))
    return [
        path,
        f"{full.devices} simulated devices in one round: {full.round_seconds:.2f} s, "
        f"{full.devices / full.round_seconds:,.0f} updates/s, of which merging takes "
        f"{full.merge_seconds:.2f} s; the aggregator's peak is {full.peak_bytes / 2**20:.0f} MiB",
        f"{long.rounds} rounds of {long.devices} devices: "
        f"{long.rounds / long.seconds:.0f} rounds/s; the aggregator holds "
        f"{long.resident_bytes[0] / 2**20:.1f} MiB after a tenth of them and "
        f"{long.resident_bytes[-1] / 2**20:.1f} MiB at the end",
    ]


def _median(runs: list[dict[str, float]], part: str) -> float:
    return statistics.median(run[part] for run in runs)


def _ratio(total: list[float], runs: list[dict[str, float]], part: str) -> float:
    return statistics.median(t / run[part] for t, run in zip(total, runs, strict=True))
