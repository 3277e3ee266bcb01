"""A branch: what users import, what it shares, and the one way in which its model is traced."""

import keras
import numpy as np
import pytest
from keras import layers

import toolkit.branch
from toolkit.branch import Adam, Branch, DoubleQ, Supervised
from toolkit.branch.branch import sharing_everything
from toolkit.errors import ModelError


def model() -> keras.Model:
    block = keras.Sequential([keras.Input((6,)), layers.Dense(5, name="inner")], name="block")
    head = layers.Dense(2, name="head")
    return keras.Sequential([keras.Input((6,)), block, layers.ReLU(name="bend"), head])


def test_users_import_from_the_package() -> None:
    assert toolkit.branch.__all__ == [
        *("SGD", "Adam", "AdamW", "Branch", "BranchDropout", "DoubleQ", "RMSProp", "Supervised"),
    ]
    assert Supervised() == Supervised("cross_entropy", Adam(learning_rate=0.001))
    assert DoubleQ().optimizer == Adam(learning_rate=0.00025)


def test_shared_tensors_come_first_and_a_nested_layer_counts_by_its_own_name() -> None:
    branch = Branch("b", model(), ("inner",))
    assert branch.shared_names == ("block/inner/kernel", "block/inner/bias")
    assert branch.local_names == ("head/kernel", "head/bias")
    assert branch.trainable_names == branch.shared_names + branch.local_names
    assert Branch("b", model(), ("block",)).shared_names == branch.shared_names
    assert sharing_everything(branch).local_names == ()


@pytest.mark.parametrize(
    ("shared", "sentence"),
    [
        (("trunk",), "the branch shares layer 'trunk', which the model does not have; its layers "
                     "are bend, block, head, inner, "),
        (("bend",), "the branch shares no layer that has weights; name at least one."),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_shared_is_refused(shared: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        Branch("b", model(), shared)
    assert str(caught.value).startswith(sentence)


def test_a_trace_begins_with_what_the_device_feeds() -> None:
    branch = Branch("b", model(), ("inner",), input_dtype="uint8", input_scale=1 / 4)
    program = branch.trace(batch=3, training=True)
    assert (program.x.shape, program.x.dtype) == ((3, 6), "uint8")
    assert (program.y.shape, program.y.dtype) == ((3, 2), "float32")
    cast, scaled = program.nodes[:2]
    assert (cast.op, cast.inputs, scaled.op) == ("Cast", (program.x,), "Mul")
    assert program.constant(scaled.inputs[1]) == np.float32(0.25)
    assert set(program.parameters) == set(branch.trainable_names)
