"""A branch's layers, as its training graph asks for them."""

import keras
from keras import layers

from toolkit import zoo
from toolkit.autodiff.lower import Layer
from toolkit.branch.branch import Branch
from toolkit.tuning.layers import layers_of


def test_strided_layers_are_dense_ones_on_blocks() -> None:
    found = layers_of(zoo.build("atari", "lightweight"))
    assert [layer.name for layer in found] == [
        "21x21x64 2x2x32 first",  # 84×84×4, 8×8 with step 4
        "10x10x128 2x2x64",  # 20×20×32, 4×4 with step 2
        "9x9x64 3x3x8",
    ]


def test_equal_layers_are_one() -> None:
    def conv(**options: object) -> layers.Layer:
        return layers.Conv2D(3, 3, padding="same", **options)

    rest = [layers.BatchNormalization(), layers.Flatten(), layers.Dense(2)]
    convolutions = [conv(name="stem"), conv(), conv(), conv(dilation_rate=2)]
    model = keras.Sequential([keras.Input((8, 8, 3)), *convolutions, *rest])
    assert layers_of(Branch("b", model, ("stem",))) == [
        Layer((10, 10, 3), (3, 3, 3), first=True),
        Layer((10, 10, 3), (3, 3, 3)),
        Layer((6, 6, 3), (3, 3, 3)),  # Keras takes every other pixel to another example
    ]


def test_a_branch_without_convolutions_has_none() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2, name="stem")])
    assert layers_of(Branch("b", model, ("stem",))) == []
