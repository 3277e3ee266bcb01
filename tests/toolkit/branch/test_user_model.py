"""A user's functions: the names of their layers, and cascades of two of them that fit one fleet."""

from pathlib import Path

import keras
import numpy as np
import pytest

from broker.aggregator.slice_file import read_slice
from broker.protocol.slice import Slice
from toolkit.branch.branch import Branch
from toolkit.branch.user_model import (
    load_branch,
    load_cascade,
    load_function_of_width,
    sharing,
)
from toolkit.errors import ModelError
from toolkit.export.onnx.slice import build_slice

PAIRS = """\
import keras
from keras import layers

def stem():
    return [
        keras.Input((12, 3)),
        layers.Conv1D(4, 3, activation="relu"),
        layers.Conv1D(4, 3, strides=2),
        layers.ReLU(),
    ]

def light():
    return [*stem(), layers.GlobalMaxPooling1D()]

def heavy():
    return [*stem(), layers.Flatten(), layers.Dense(5, activation="relu"), layers.Dropout(0.2)]

def plain_weak():
    return keras.Sequential([*light(), layers.Dense(2)])

def plain_strong():
    return keras.Sequential([*heavy(), layers.Dense(2)])

def activation_weak():
    return keras.Sequential([*light(), layers.Dense(2, activation="softmax")])

def activation_strong():
    return keras.Sequential([*heavy(), layers.Dense(2, activation="softmax")])

def functional(parts, softmax):
    x, *rest = parts
    y = x
    for part in rest:
        y = part(y)
    y = layers.Dense(2)(y)
    return keras.Model(x, layers.Softmax()(y) if softmax else y)

def functional_weak():
    return functional(light(), softmax=True)

def functional_strong():
    return functional(heavy(), softmax=False)

def nested_weak():
    x, *rest = light()
    head = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    return keras.Sequential([x, *rest, head])

nested_strong = plain_strong

def block_weak():
    block = keras.Sequential(stem(), name="block")
    x = keras.Input((12, 3))
    y = layers.GlobalMaxPooling1D()(block(x))
    return keras.Model(x, layers.Dense(2)(y))

def block_strong():
    block = keras.Sequential(stem(), name="block")
    x = keras.Input((12, 3))
    y = layers.Dropout(0.2)(layers.Dense(5)(layers.Flatten()(block(x))))
    return keras.Model(x, layers.Dense(2)(y))

def hidden_softmax():
    x, *rest = light()
    head = keras.Sequential([keras.Input((4,)), layers.Dense(2, activation="softmax")], name="head")
    return keras.Sequential([x, *rest, head], name="whole")

def dueling_weak():
    x, *rest = light()
    y = x
    for part in rest:
        y = part(y)
    a = layers.Dense(2)(y)
    return keras.Model(x, layers.Dense(1)(y) + a - keras.ops.mean(a, axis=1, keepdims=True))

dueling_strong = plain_strong

def named():
    return keras.Sequential([*light(), layers.Dense(2, name="out")]), ["conv1d"]

def wide(width):
    return keras.Sequential([*light(), layers.Dense(width), layers.Dense(2)])
"""
KINDS = ("plain", "activation", "functional", "nested", "block", "dueling")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS)
    return path


def slice_of(branch: Branch) -> Slice:
    found, _ = read_slice(build_slice(branch).SerializeToString())
    return found


def test_names_depend_on_the_function_alone(file: Path) -> None:
    first = [load_branch(f"{file}:plain_weak") for _ in range(2)]
    load_branch(f"{file}:plain_strong")
    wide = load_function_of_width(f"{file}:wide")
    for branch in (*first, load_branch(f"{file}:plain_weak")):
        assert branch.shared_layers == ("conv1d", "conv1d_1", "dense")
    assert [wide(width).local_names for width in (3, 5)] == [(), ()]
    assert wide(3).shared_names == wide(5).shared_names


def test_initial_weights_follow_the_seed(file: Path) -> None:
    """Counting names anew leaves the random numbers as they are."""
    kernels = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        kernels.append(load_branch(f"{file}:plain_weak").weights()["dense/kernel"])
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])


@pytest.mark.parametrize("kind", KINDS)
def test_both_branches_of_a_cascade_have_one_slice(file: Path, kind: str) -> None:
    weak, strong = f"{file}:{kind}_weak", f"{file}:{kind}_strong"
    keras.utils.set_random_seed(3)
    light, alone = load_branch(weak), load_branch(strong)
    keras.utils.set_random_seed(3)
    both = load_cascade(weak, strong)
    assert both.early_output is not None
    assert light.local_names == ()
    assert both.shared_names == light.shared_names
    assert slice_of(both) == slice_of(light)
    for name, value in light.weights().items():
        np.testing.assert_array_equal(both.weights()[name], value)

    stem = 3 * 3 * 4 + 4 + 3 * 4 * 4 + 4  # found without a name of the user's, and computed once
    sizes = [sum(v.size for v in branch.weights().values()) for branch in (light, alone, both)]
    assert sizes[2] == sizes[0] + sizes[1] - stem
    program = both.trace(batch=2, training=True)
    assert [node.op for node in program.nodes].count("Conv2D") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_cascade_with_branch_dropout_has_the_same_slice(file: Path, kind: str) -> None:
    weak, strong = f"{file}:{kind}_weak", f"{file}:{kind}_strong"
    both = load_cascade(weak, strong, branch_dropout=0.5)
    assert both.early_output is None
    assert slice_of(both) == slice_of(load_branch(weak))
    random = [n for n in both.trace(batch=2, training=True).nodes if "Random" in n.op]
    assert {node.layer for node in random} == {"dropout", "branch_dropout"}


def test_a_weak_network_that_keeps_layers_is_refused_or_shared_as_a_whole(file: Path) -> None:
    weak, strong = f"{file}:named", f"{file}:plain_strong"
    with pytest.raises(ModelError) as caught:
        load_cascade(weak, strong)
    assert str(caught.value) == (
        "in a cascade the whole weak network is shared, and pairs-named keeps conv1d_1/bias, "
        "conv1d_1/kernel, out/bias, out/kernel; let its function return the model alone, or give "
        "--share all."
    )
    light = sharing(load_branch(weak), "all")
    assert light.local_names == ()
    assert slice_of(load_cascade(weak, strong, share="all")) == slice_of(light)


def test_a_network_and_itself_are_no_cascade(file: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_cascade(f"{file}:plain_weak", f"{file}:plain_weak")
    assert str(caught.value) == (
        "pairs-plain_weak is the same network as pairs-plain_weak; in a cascade the strong one has "
        "layers of its own."
    )


def test_a_softmax_that_cannot_be_taken_off_is_refused(file: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_cascade(f"{file}:hidden_softmax", f"{file}:plain_strong")
    assert str(caught.value) == (
        "whole closes with a softmax inside head, a nested model, and a cascade adds what comes "
        "before it; put the softmax behind the nested model."
    )


def test_other_layers_can_be_shared(file: Path) -> None:
    branch = load_branch(f"{file}:named")
    assert sharing(branch, None) is branch
    assert sharing(branch, "conv1d_1, out").shared_names == (
        *("conv1d_1/kernel", "conv1d_1/bias", "out/kernel", "out/bias"),
    )
    with pytest.raises(ModelError, match="shares layer 'trunk', which the model does not have"):
        sharing(branch, "conv1d,trunk")
