"""`toolkit bench quantisation`: the accuracy that smaller updates cost.

The weak and the powerful device of a task with cascading branches, in synchronous rounds: real
agents and a real aggregator over the broker in memory, one fleet for each encoding and seed. The
seed decides the order of the data, and dropout draws the same numbers, so fleets of the same seed
differ only in the encoding of updates. Differences are taken within a seed, then averaged.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.table import Table

from broker.aggregator.slice_file import read_slices
from broker.log import Log
from broker.protocol.topics import AGGREGATOR, Topics
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Will
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.build import make_rounds
from firmware_sim.tasks.cifar10 import read_cifar10
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tasks.labelled import Examples, LabelledTask, own_share
from firmware_sim.training.rounds import Plan
from profiles import load_profile
from toolkit import zoo
from toolkit.bench.contest import Progress
from toolkit.bench.zoo_bundles import build_branch, export_branch
from toolkit.errors import ToolkitError
from toolkit.fleet.in_one_process import NEVER, Connect, Fleet, Member, run_fleet

BASELINE = "float32"
TASKS = get_args(zoo.SupervisedTask)
# The part of the training data that each device holds.
SHARES = {"weak": (0.0, 0.1), "powerful": (0.1, 0.5)}
TEST_IMAGES = 5_000  # of CIFAR-10's 10,000, so that most of the time is spent on training
BENCH = "bench"  # the fleet's name


@dataclass(frozen=True)
class Outcome:
    """The result of one device in one fleet."""

    accuracy: float  # 0 to 1
    update_bytes: float  # in a round, headers included


def run_bench(
    folder: Path,
    *,
    task: str,
    data: Path | None,
    encodings: Sequence[str],
    seeds: Sequence[int],
    rounds: int,
    steps: int,
    progress: Progress,
    learning_rate: float | None = None,
    fleets: int = 1,
) -> dict[str, Any]:
    """Returns the results of all encodings, and of float32, with all seeds.

    `fleets` fleets run at the same time. Without a learning rate each branch keeps its own.
    """
    examples = _examples(task, data)
    bundles = {}
    for profile in SHARES:
        progress(f"exporting the branch of the {profile} device")
        bundles[profile] = _export(task, profile, folder / profile, learning_rate)

    def outcome(encoding: str, seed: int) -> dict[str, Outcome]:
        progress(f"{task}, {encoding}, seed {seed}")
        own = folder / f"{encoding}-{seed}"
        counts = {"rounds": rounds, "steps": steps}
        return _run_fleet(own, bundles, examples, encoding=encoding, seed=seed, **counts)

    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    with ThreadPoolExecutor(fleets) as pool:
        running = {
            encoding: [pool.submit(outcome, encoding, seed) for seed in seeds]
            for encoding in dict.fromkeys((BASELINE, *encodings))
        }
        for encoding, of_seeds in running.items():
            found = [of_seed.result() for of_seed in of_seeds]
            results[encoding] = {name: [vars(one[name]) for one in found] for name in SHARES}
    return {
        "machine": platform.processor() or platform.machine(),
        "task": task,
        "seeds": list(seeds),
        "rounds": rounds,
        "steps": steps,
        "learning_rate": learning_rate,
        "results": results,
    }


def _examples(task: str, data: Path | None) -> Examples:
    if task == "digits":
        return read_digits()
    if task != "cifar10" or data is None:
        raise ToolkitError(
            f"the tasks are {' and '.join(TASKS)}, and cifar10 needs the folder with its batches."
        )
    whole = read_cifar10(data)
    return Examples(
        whole.x_train, whole.y_train, whole.x_test[:TEST_IMAGES], whole.y_test[:TEST_IMAGES]
    )


def _export(task: str, profile: str, folder: Path, learning_rate: float | None) -> Bundle:
    loaded = load_profile(profile)
    branch = build_branch(task, loaded.branch, "cascading")
    return export_branch(branch, task, loaded, folder, learning_rate=learning_rate)


def _run_fleet(
    folder: Path,
    bundles: dict[str, Bundle],
    examples: Examples,
    *,
    encoding: str,
    seed: int,
    rounds: int,
    steps: int,
) -> dict[str, Outcome]:
    """Runs one fleet; all fleets start with the same weights."""
    folder.mkdir(parents=True)
    sent: dict[str, int] = dict.fromkeys(bundles, 0)
    slices = read_slices([bundle.slice for bundle in bundles.values()])
    with (folder / "log.jsonl").open("w") as stream:
        log = Log(stream)
        members = []
        for name, bundle in bundles.items():
            task = LabelledTask(
                own_share(examples, SHARES[name]), batch=load_profile(name).batch_size, seed=seed
            )
            plan = Plan(steps, evaluate_every=rounds + 1, resend_seconds=NEVER)
            trained = make_rounds(
                bundle, task, device=name, state=folder / name, plan=plan, log=log, threads=1
            )
            members.append(Member(name, trained, bundle.manifest.shared, log, encoding))
        fleet = Fleet(BENCH, members, slices.known, slices.start, rounds, folder / AGGREGATOR, log)
        scores = run_fleet(fleet, _counting(sent))
    return {name: Outcome(scores[name]["accuracy"], sent[name] / rounds) for name in bundles}


def _counting(sent: dict[str, int]) -> Connect:
    """Connects to a broker in memory and adds up the bytes of updates by device."""
    broker, topics = MemoryBroker(), Topics(BENCH)

    class Counting(MemoryTransport):
        def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
            for device in sent:
                if topic.startswith(topics.update(device)):
                    sent[device] += len(payload)
            super().publish(topic, payload, retain=retain)

    def connect(*, client_id: str, subscriptions: Sequence[str], will: Will | None) -> Counting:
        return Counting(broker, client_id=client_id, subscriptions=subscriptions, will=will)

    return connect


def tables(report: dict[str, Any]) -> list[Table | str]:
    table = Table("updates as", "accuracy", "against float32", "± (seeds)", "sent in a round", "")
    baseline = report["results"][BASELINE]
    for encoding, devices in report["results"].items():
        differences = _differences(devices, baseline)
        sent, full = _sent(devices), _sent(baseline)
        table.add_row(
            encoding,
            f"{100 * statistics.mean(_accuracies(devices)):.2f} %",
            "" if encoding == BASELINE else f"{statistics.mean(differences):+.2f} points",
            "" if encoding == BASELINE else f"{_standard_error(differences):.2f}",
            f"{sent / 1e3:.1f} kB",
            f"{sent / full:.1%}",
        )
    rate = report["learning_rate"]
    return [
        table,
        f"{report['task']}: mean over {len(baseline)} devices and {len(report['seeds'])} seeds, "
        f"after {report['rounds']} rounds of {report['steps']} mini-batches; bytes of both devices"
        + ("" if rate is None else f"; learning rate {rate:g} instead of the branch's own"),
    ]


def _accuracies(devices: dict[str, list[dict[str, float]]]) -> list[float]:
    """Returns, for each seed, the mean over devices."""
    by_seed = zip(*devices.values(), strict=True)
    return [statistics.mean(found["accuracy"] for found in seed) for seed in by_seed]


def _differences(
    devices: dict[str, list[dict[str, float]]], baseline: dict[str, list[dict[str, float]]]
) -> list[float]:
    """Returns, for each seed, the difference in percentage points."""
    pairs = zip(_accuracies(devices), _accuracies(baseline), strict=True)
    return [100 * (found - full) for found, full in pairs]


def _standard_error(differences: list[float]) -> float:
    if len(differences) < 2:
        return float("nan")
    return statistics.stdev(differences) / math.sqrt(len(differences))


def _sent(devices: dict[str, list[dict[str, float]]]) -> float:
    return sum(statistics.mean(found["update_bytes"] for found in d) for d in devices.values())
