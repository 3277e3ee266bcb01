"""Update plans: which tensors train, and what becomes of the others."""

from __future__ import annotations

import keras
import pytest
from keras import layers

from toolkit.branch.branch import Branch
from toolkit.errors import ModelError
from toolkit.training.module import TrainingModule
from toolkit.updating.plans import planned


@pytest.fixture(scope="module")
def branch() -> Branch:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 1))
    y = layers.Conv2D(4, 3, name="stem")(x)
    y = layers.ReLU()(layers.BatchNormalization(name="norm")(y))
    y = layers.Conv2D(6, 3, name="upper")(y)
    y = layers.GlobalAveragePooling2D()(y)
    return Branch("planned", keras.Model(x, layers.Dense(3, name="head")(y)), ("stem",))


def names(branch: Branch, plan: str) -> set[str]:
    return set(planned(branch, plan).trainable_names)


def test_plans_name_their_tensors_and_shared_ones_outside_are_received(branch: Branch) -> None:
    head, upper = {"head/kernel", "head/bias"}, {"upper/kernel", "upper/bias"}
    assert names(branch, "last:1") == head
    assert names(branch, "last:2") == head | upper
    assert names(branch, "biases") == head | {"stem/bias", "norm/beta", "upper/bias"}
    assert planned(branch, "all") is branch
    weak = planned(branch, "last:2")
    assert weak.sent_names == ()
    assert weak.received_names == weak.shared_names == ("stem/kernel", "stem/bias")


def test_what_is_neither_trained_nor_received_is_frozen_and_its_statistics_stand_still(
    branch: Branch,
) -> None:
    module = TrainingModule(planned(branch, "last:2"), batch=4, runtime="ai-edge-litert")
    frozen = {f"norm/{kind}" for kind in ("gamma", "beta", "moving_mean", "moving_variance")}
    assert module.programs.frozen.keys() == frozen
    assert module.training_program.updates == {}


@pytest.mark.parametrize("plan", ["last:0", "last:x", "none"])
def test_an_unknown_plan_is_refused(branch: Branch, plan: str) -> None:
    with pytest.raises(ModelError, match="is none of all, last:K"):
        planned(branch, plan)
