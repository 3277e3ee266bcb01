"""`--update auto` under a profile's cap and a step time; bundles are made up, so it is quick."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from profiles import load_profile
from toolkit.branch.branch import Branch
from toolkit.errors import ExportError
from toolkit.export.automatic import export_automatically, limits_of
from toolkit.export.bundle import Calibration
from toolkit.updating.choosing import PART
from toolkit.updating.costs import costs_of, totals

WEAK = load_profile("weak")
EXAMPLES = Calibration("noise", np.random.default_rng(0).normal(size=(4, 8, 8, 1)))
HEAD = {"head/kernel", "head/bias"}
SECONDS = 1e-6  # of an operation


@pytest.fixture(scope="module")
def branch() -> Branch:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 1))
    y = layers.Conv2D(4, 3, activation="relu", name="stem")(x)
    y = layers.Flatten()(layers.Conv2D(6, 3, activation="relu", name="upper")(y))
    return Branch("auto", keras.Model(x, layers.Dense(3, name="head")(y)), ("stem",))


class Writer:
    """A device whose step takes as long as its plan has operations."""

    def __init__(self, branch: Branch, micro_batches: tuple[int, ...] = ()) -> None:
        self.micro_batches = iter(micro_batches)  # that fit, of the first plans
        self.costs = costs_of(branch, branch.trainable_names)
        self.plans: list[set[str]] = []

    def __call__(self, plan: Branch) -> Any:
        self.plans.append(set(plan.trainable_names))
        chosen = {c.name: c for c in self.costs.candidates if c.name in self.plans[-1]}
        seconds = SECONDS * totals(self.costs, chosen)[0]
        return SimpleNamespace(
            measured=SimpleNamespace(step_seconds=seconds),
            manifest=SimpleNamespace(micro_batch_size=next(self.micro_batches, 32)),
        )


def test_without_a_time_a_part_of_the_operations_is_spent(branch: Branch) -> None:
    write = Writer(branch)
    found = export_automatically(branch, WEAK, EXAMPLES, write)
    assert write.plans == [set(found.chosen.names)]
    assert set(found.branch.trainable_names) > HEAD
    assert found.branch.update == "auto"
    assert 0 < found.part <= PART
    assert found.line().startswith(f"auto trains {len(found.chosen.names)} tensors, ")


def test_a_step_that_takes_too_long_is_chosen_again(branch: Branch) -> None:
    write = Writer(branch)
    whole = export_automatically(branch, WEAK, EXAMPLES, write)
    longest = 0.9 * SECONDS * whole.chosen.operations
    found = export_automatically(branch, WEAK, EXAMPLES, write, max_step_seconds=longest)
    assert len(write.plans) >= 3
    assert SECONDS * found.chosen.operations <= longest
    with pytest.raises(
        ExportError, match=r"the smallest plan that was tried takes .* allows 0.001"
    ):
        export_automatically(branch, WEAK, EXAMPLES, write, max_step_seconds=1e-6)
    assert write.plans[-1] == HEAD


def test_a_plan_that_fits_in_tiny_micro_batches_only_is_chosen_again(branch: Branch) -> None:
    write = Writer(branch, micro_batches=(2, 1))
    found = export_automatically(branch, WEAK, EXAMPLES, write)
    first, second = write.plans
    assert first > second == HEAD == set(found.branch.trainable_names)


def test_the_cap_limits_the_bytes(branch: Branch) -> None:
    costs = costs_of(branch, branch.trainable_names)
    limits = limits_of(branch, costs, WEAK)
    more = limits_of(branch, costs, replace(WEAK, memory_cap_mib=WEAK.memory_cap_mib + 10))
    assert more.bytes - limits.bytes == 10 * 2**20
    tight = replace(WEAK, memory_cap_mib=62)  # less than a process
    assert set(export_automatically(branch, tight, EXAMPLES, Writer(branch)).chosen.names) == HEAD
