"""`toolkit bench quantisation`: what fewer bytes in updates cost in accuracy.

The weak and the powerful device of a task, cascading branches, synchronous rounds: real agents and
a real aggregator over the broker in memory, one fleet for each encoding and seed. The seed decides
the order of the data, so fleets of the same seed differ in nothing but the encoding of updates;
dropout draws the same numbers too. Differences are taken within a seed, then averaged.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import keras
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
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import Adam, RMSProp
from toolkit.errors import ToolkitError
from toolkit.export.bundle import export
from toolkit.export.calibration import calibration_for
from toolkit.fleet.in_one_process import NEVER, Connect, Fleet, Member, run_fleet

Progress = Callable[[str], None]
BASELINE = "float32"
TASKS = get_args(zoo.SupervisedTask)
# The part of the training data that each device holds.
SHARES = {"weak": (0.0, 0.1), "powerful": (0.1, 0.5)}
TEST_IMAGES = 5_000  # of CIFAR-10's 10,000, so that training takes most of the time
BENCH = "bench"  # the fleet's name


@dataclass(frozen=True)
class Outcome:
    """One device of one fleet, at the end."""

    accuracy: float  # of 1
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
    """Every encoding, and float32 in any case, with every seed; so many `fleets` at once.

    Without a learning rate each branch has its own.
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
    keras.utils.set_random_seed(0)
    branch = zoo.build(task, loaded.branch, "cascading")
    if learning_rate is not None:
        # As every task of this benchmark has them.
        assert isinstance(branch.learning, Supervised)
        assert isinstance(branch.learning.optimizer, Adam | RMSProp)
        optimizer = replace(branch.learning.optimizer, learning_rate=learning_rate)
        branch = replace(branch, learning=replace(branch.learning, optimizer=optimizer))
    return export(branch, loaded, folder, calibration=calibration_for(branch, task, None))


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
    """One fleet, from the same start as any other."""
    folder.mkdir(parents=True)
    sent: dict[str, int] = dict.fromkeys(bundles, 0)
    known, start = read_slices([bundle.slice for bundle in bundles.values()])
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
        fleet = Fleet(BENCH, members, known, start, rounds, folder / AGGREGATOR, log)
        scores = run_fleet(fleet, _counting(sent))
    return {name: Outcome(scores[name]["accuracy"], sent[name] / rounds) for name in bundles}


def _counting(sent: dict[str, int]) -> Connect:
    """Over a broker in memory, with the bytes of updates added up by device."""
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
    """Of each seed, the mean over devices."""
    by_seed = zip(*devices.values(), strict=True)
    return [statistics.mean(found["accuracy"] for found in seed) for seed in by_seed]


def _differences(
    devices: dict[str, list[dict[str, float]]], baseline: dict[str, list[dict[str, float]]]
) -> list[float]:
    """Of each seed, in points."""
    pairs = zip(_accuracies(devices), _accuracies(baseline), strict=True)
    return [100 * (found - full) for found, full in pairs]


def _standard_error(differences: list[float]) -> float:
    if len(differences) < 2:
        return float("nan")
    return statistics.stdev(differences) / math.sqrt(len(differences))


def _sent(devices: dict[str, list[dict[str, float]]]) -> float:
    return sum(statistics.mean(found["update_bytes"] for found in d) for d in devices.values())
