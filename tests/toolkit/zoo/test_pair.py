"""The topologies of every pair of the zoo."""

import keras
import numpy as np
import pytest

from toolkit import zoo
from toolkit.branch import BranchDropout
from toolkit.errors import ModelError
from toolkit.zoo import Topology

TASKS = ("atari", "cartpole", "cifar10", "digits", "minatar")
EARLY = {"cifar10": "light_output", "digits": "light_output"}  # of players: q_values


def test_every_task_has_every_topology_of_both_branches() -> None:
    topologies = ("share-first", "cascading", "two-loss")
    assert Topology.__args__ == topologies  # type: ignore[attr-defined]
    assert sorted(zoo.names()) == sorted(
        (task, branch, topology)
        for task in TASKS
        for branch in ("lightweight", "complex")
        for topology in topologies
    )


@pytest.mark.parametrize("task", TASKS)
def test_both_cascades_share_the_whole_lightweight_branch(task: str) -> None:
    names = {}
    for topology in ("cascading", "two-loss"):
        lightweight, complex_ = (
            zoo.build(task, branch, topology) for branch in ("lightweight", "complex")
        )
        assert lightweight.local_names == ()
        assert set(complex_.shared_names) == set(lightweight.shared_names)
        dropouts = [ly.rate for ly in complex_.model.layers if isinstance(ly, BranchDropout)]
        assert dropouts == ([0.5] if topology == "cascading" else [])
        early = EARLY.get(task, "q_values") if topology == "two-loss" else None
        assert (lightweight.early_output, complex_.early_output) == (None, early)
        assert complex_.name.endswith(f"-{topology}")
        names[topology] = complex_.trainable_names
    assert names["cascading"] == names["two-loss"]


@pytest.mark.parametrize("task", ["digits", "minatar"])
def test_a_cascade_is_the_sum_of_the_pairs_outputs(task: str) -> None:
    """The pair gets the weights of the cascade, whose random numbers come in another order."""
    cascade = zoo.build(task, "complex", "two-loss")
    lightweight, complex_ = (zoo.build(task, branch) for branch in ("lightweight", "complex"))
    weights = cascade.weights()
    for branch in (lightweight, complex_):
        for layer in branch.model.layers:
            own = branch is complex_ and f"strong_{layer.name}" in _layers(cascade.model)
            name = f"strong_{layer.name}" if own else layer.name
            parts = [weights[f"{name}/{part}"] for part in ("kernel", "bias")[: len(layer.weights)]]
            layer.set_weights(parts)
    shape = (5, *cascade.input_shape)
    x = np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)
    light, refined = (
        np.asarray(keras.Model(b.model.inputs[0], _logits(b.model))(x))
        for b in (lightweight, complex_)
    )
    found = np.asarray(keras.Model(cascade.model.inputs[0], _logits(cascade.model))(x))
    np.testing.assert_allclose(found, light + refined, rtol=1e-4, atol=1e-5)


def _layers(model: keras.Model) -> set[str]:
    return {layer.name for layer in model.layers}


def _logits(model: keras.Model) -> keras.KerasTensor:
    last = model.layers[-1]
    return last.input if last.name == "softmax" else last.output


def test_a_topology_that_there_is_not() -> None:
    with pytest.raises(ModelError) as caught:
        zoo.build("digits", "complex", "ring")
    assert str(caught.value) == (
        "task 'digits' has no ring topology; it has cascading, share-first, two-loss."
    )
