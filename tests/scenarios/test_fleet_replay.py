"""What a fleet computes is what plain arithmetic gives.

An aggregator and three devices, two weak and one powerful, run as processes over mosquitto and
learn digits; each holds another amount of data. A watcher records what is on the wire. From the
updates that were accepted and the values in the slice's file, plain numpy gives θ_shared. Expected:
the retained θ_shared is that to 1e-6, and so are the shared tensors in every device's checkpoint.

In asynchronous mode the order of merging matters. Every accepted update is a merge, and verdicts
leave the aggregator in the order of merging, so as long as nobody is killed the verdicts tell it.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from broker.protocol.messages import Shared, Update
from broker.protocol.slice import Tensors
from broker.protocol.topics import Topics
from firmware_sim.bundle.reader import SLICE, Bundle
from firmware_sim.training.checkpoint import Checkpoints
from tests.harness.arithmetic import UNBOUNDED, assert_same, replay
from tests.harness.programs import Programs
from tests.harness.watcher import Watcher

pytestmark = pytest.mark.xdist_group("fleet")

DEVICES = {"pi-1": ("weak", "0:0.2"), "pi-2": ("weak", "0.2:0.5"), "gateway": ("powerful", "0.5:1")}
ROUNDS = 4  # merges of a synchronous fleet


@pytest.fixture
def start(bundles: dict[str, Bundle]) -> Tensors:
    """The values in the first slice's file, which the fleet starts from."""
    graph = onnx.load(bundles["weak"].folder / SLICE).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


@pytest.fixture
def learn(
    bundles: dict[str, Bundle], programs: Programs, watcher: Watcher, topics: Topics
) -> Callable[..., list[Update]]:
    """Runs the fleet with these options to its end; the answer is what it accepted."""

    def run(*options: str) -> list[Update]:
        devices = [
            programs.device(
                name, bundles[profile], *("--share", share, "--steps", "3", "--seed", str(seed))
            )
            for seed, (name, (profile, share)) in enumerate(DEVICES.items())
        ]
        for device in devices:
            device.wait_for("connected")  # so that all start together, when the aggregator comes
        slices = [part for b in bundles.values() for part in ("--slice", b.folder / SLICE)]
        aggregator = programs.aggregator(
            *slices, "--quorum", str(len(DEVICES)), *options, *UNBOUNDED
        )
        assert [p.exit_code() for p in (aggregator, *devices)] == [0, 0, 0, 0]
        watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)
        return watcher.accepted()

    return run


@pytest.fixture
def check_ends(
    bundles: dict[str, Bundle],
    tmp_path: Path,
    watch: Callable[[], Watcher],
    topics: Topics,
) -> Callable[[Mapping[str, Any], int], None]:
    """Asserts that the broker and every device have θ_shared after so many merges."""

    def check(expected: Mapping[str, Any], merges: int) -> None:
        retained = watch().wait_for(Shared, topics.shared)
        assert (retained.round, retained.last) == (merges, True)
        assert_same(retained.tensors, expected)
        for name, (profile, _) in DEVICES.items():
            digest = bundles[profile].model_digest
            kept = Checkpoints(tmp_path / name, device=name, bundle=digest).load()
            assert kept is not None
            assert kept.round == merges
            assert_same({tensor: kept.learner[f"model/{tensor}"] for tensor in expected}, expected)

    return check


def check_rounds(updates: list[Update]) -> None:
    """Every device once in every round, with its own amount of data and something learnt."""
    assert sorted((u.round, u.device) for u in updates) == sorted(
        (number, device) for number in range(ROUNDS) for device in DEVICES
    )
    assert {u.device: u.encoding for u in updates} == {
        "pi-1": "int8", "pi-2": "int8", "gateway": "float32",
    }  # fmt: skip
    assert {u.device: u.samples for u in updates} == {"pi-1": 287, "pi-2": 431, "gateway": 719}
    assert all(np.abs(tensor).max() > 1e-5 for u in updates for tensor in u.tensors.values())


@pytest.mark.parametrize(("merge", "momentum"), [("samples", 0.0), ("mean", 0.5)])
def test_synchronous_rounds(
    merge: str,
    momentum: float,
    start: Tensors,
    learn: Callable[..., list[Update]],
    check_ends: Callable[[Mapping[str, Any], int], None],
) -> None:
    optimizer = ["--optimizer", f"momentum:{momentum}"] if momentum else []
    updates = learn("--merge", merge, *optimizer, "--rounds", str(ROUNDS))
    check_rounds(updates)
    check_ends(replay(start, updates, mean=merge == "mean", momentum=momentum), ROUNDS)


def test_synchronous_gradients_with_adam(
    start: Tensors,
    learn: Callable[..., list[Update]],
    check_ends: Callable[[Mapping[str, Any], int], None],
) -> None:
    options = ("--exchange", "gradient", "--optimizer", "adam:0.01")
    updates = learn(*options, "--merge", "samples", "--rounds", str(ROUNDS))
    check_rounds(updates)
    theta = {name: value.astype(np.float64) for name, value in start.items()}
    mean = {name: np.zeros(value.shape) for name, value in start.items()}
    square = {name: np.zeros(value.shape) for name, value in start.items()}
    for t in range(1, ROUNDS + 1):
        sent = [u for u in updates if u.round == t - 1]
        for name in theta:
            # g = Σ_k n_k·g_k / Σ_k n_k, then Kingma & Ba's Adam with ε beside √v as Keras has it.
            gradients = [u.tensors[name].astype(np.float64) for u in sent]
            g = np.average(gradients, axis=0, weights=[u.samples for u in sent])
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.999 * square[name] + 0.001 * g**2
            rate = 0.01 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            theta[name] = theta[name] - rate * mean[name] / (np.sqrt(square[name]) + 1e-7)
    check_ends(theta, ROUNDS)


def test_asynchronous_merges_with_polynomial_staleness(
    start: Tensors,
    learn: Callable[..., list[Update]],
    check_ends: Callable[[Mapping[str, Any], int], None],
) -> None:
    merges = 12
    options = ("--mode", "async", "--merge", "samples", "--staleness", "polynomial")
    updates = learn(*options, "--rounds", str(merges))
    assert len(updates) == merges
    theta = {name: value.astype(np.float64) for name, value in start.items()}
    samples: dict[str, int] = {}  # of the devices heard so far
    stale = 0
    for merge, update in enumerate(updates):
        samples[update.device] = update.samples
        age = merge - update.round
        stale += age > 0
        weight = (1 + age) ** -0.5 * update.samples / sum(samples.values())
        for name, change in update.tensors.items():
            theta[name] = theta[name] + weight * change.astype(np.float64)
    assert stale > 0  # otherwise the rule was not tried
    check_ends(theta, merges)
