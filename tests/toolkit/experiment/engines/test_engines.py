"""Both engines draw the same random numbers, take the same steps, and can begin a stream anew."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firmware_sim.training.random_streams import stream_number
from toolkit.branch.branch import Branch
from toolkit.branch.layers import BranchDropout
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import BATCH
from toolkit.experiment.engines.models import model_for
from toolkit.experiment.supervised.branches import supervised_branch
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedOptions, plan

pytestmark = pytest.mark.xdist_group("experiment")
SHAPE = (8, 8, 1)


def cell(engine: str = "tf", **options: Any) -> SupervisedCell:
    """A heterogeneous cascade: the powerful branch has dropout and branch dropout."""
    (found,) = plan(
        SupervisedOptions(task="digits", engine=engine, **options),
        settings=["heterogeneous"],
        topologies=["cascading"],
        weak_fractions=[0.2],
        seeds=[3],
    )
    return found


def branch_of(cell: SupervisedCell, device: str = "powerful") -> Branch:
    return supervised_branch(cell, device, image_shape=SHAPE, classes=10)


def batches(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.integers(0, 17, (BATCH, *SHAPE)).astype(np.uint8),
            "y": rng.integers(0, 10, BATCH).astype(np.int32),
        }
        for _ in range(count)
    ]


def losses(model: Any, stream: int, steps: int) -> list[float]:
    model.use_random_stream(stream)
    return [float(model.call("train", **batch)["loss"]) for batch in batches(steps)]


@pytest.mark.parametrize(
    ("signature", "stream"),
    [("train", 5), ("accumulate", stream_number("0 weak", 3)), ("train", 2**31 - 1)],
)
def test_both_engines_train_alike(signature: str, stream: int) -> None:
    """With dropout: other numbers would give losses that differ in their first digits."""
    models: list[Any] = [model_for(c, "powerful", branch_of(c)) for c in (cell(), cell("tflite"))]
    for model in models:
        model.use_random_stream(stream)
    for batch in batches(8):
        ours, theirs = (model.call(signature, **batch)["loss"] for model in models)
        assert ours == pytest.approx(theirs, rel=1e-4)
    scores = [model.call("evaluate", **batches(1)[0]) for model in models]
    assert scores[0]["correct"] == scores[1]["correct"]
    assert scores[0]["loss"] == pytest.approx(scores[1]["loss"], rel=1e-3)
    states = [model.call("get_state") for model in models]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_allclose(value, states[1][name], rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("engine", ["tf", "tflite"])
def test_a_stream_begins_anew_and_no_two_are_alike(engine: str) -> None:
    here = cell(engine)
    first = losses(model_for(here, "powerful", branch_of(here)), 1, 4)
    again = losses(model_for(here, "powerful", branch_of(here)), 1, 4)
    other = losses(model_for(here, "powerful", branch_of(here)), 2, 4)
    assert first == again
    assert all(abs(a - b) > 1e-4 for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("engine", ["tf", "tflite"])
def test_variables_survive_a_new_stream(engine: str) -> None:
    here = cell(engine)
    model: Any = model_for(here, "powerful", branch_of(here))
    losses(model, 1, 3)
    before = model.call("get_state")
    model.use_random_stream(2)
    after = model.call("get_state")
    assert before["optimizer/step"] == 3
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)


def test_a_model_is_made_once_and_starts_from_its_branch() -> None:
    here = cell()
    branch = branch_of(here)
    model = model_for(here, "powerful", branch)
    losses(model, 1, 2)
    other = replace(here, seed=4, weak_fraction=0.4)
    again = model_for(other, "powerful", branch_of(other))
    assert again is model
    state = again.call("get_state")
    for name, value in branch_of(other).weights().items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)
    assert not any(np.any(v) for name, v in state.items() if name.startswith("optimizer/"))
    slower = replace(here, options=replace(here.options, learning_rate=0.5))
    assert model_for(slower, "powerful", branch_of(slower)) is not model


def test_the_branch_follows_its_cell() -> None:
    here = cell()
    branch = branch_of(here)
    assert branch.name == "digits-complex-cascading"
    assert branch_of(here, "weak").name == "digits-lightweight"
    slow = branch_of(replace(here, options=replace(here.options, learning_rate=0.25)))
    assert slow.learning.optimizer == replace(branch.learning.optimizer, learning_rate=0.25)  # type: ignore[type-var]
    for name, value in branch_of(here).weights().items():
        np.testing.assert_array_equal(value, branch.weights()[name])
    other = branch_of(replace(here, seed=9)).weights()
    assert np.any(other["conv3/kernel"] != branch.weights()["conv3/kernel"])


def test_the_ablation_changes_branch_dropout_and_nothing_else() -> None:
    here = cell()
    with_it, without = branch_of(here), branch_of(replace(here, branch_dropout=False))

    def rates(branch: Branch) -> list[float]:
        return [layer.rate for layer in branch.model.layers if isinstance(layer, BranchDropout)]

    assert (rates(with_it), rates(without)) == ([0.5], [0.0])
    names = [[layer.name for layer in b.model.layers[1:]] for b in (with_it, without)]
    assert names[0] == names[1]  # but for the input's, which Keras makes up
    for name, value in with_it.weights().items():
        np.testing.assert_array_equal(value, without.weights()[name])
    assert without.shared_layers == with_it.shared_layers


def test_images_of_the_user_get_branches_of_their_size() -> None:
    own = replace(cell(), options=SupervisedOptions(task="npz"))
    branch = supervised_branch(own, "powerful", image_shape=(14, 20, 2), classes=3)
    assert branch.model.input_shape == (None, 14, 20, 2)
    assert branch.model.output_shape == (None, 3)
    with pytest.raises(ExperimentError) as caught:
        supervised_branch(own, "powerful", image_shape=(11, 20, 2), classes=3)
    assert str(caught.value) == (
        "images of [11, 20, 2] cannot be studied; they need [height, width, channels] with at "
        "least 12 × 12 pixels."
    )
