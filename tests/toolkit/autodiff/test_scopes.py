"""Every operation of a trace belongs to the layer that made it, whatever layers are called."""

import keras
import numpy as np
from keras import layers

from toolkit.autodiff import run, trace


class Twice(layers.Layer):
    """A user's own layer with two others inside, called by the names that Keras gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(3), layers.Dense(3)

    def build(self, shape: tuple[int, ...]) -> None:
        self.first.build(shape)
        self.second.build((shape[0], 3))

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return keras.ops.relu(self.second(self.first(x)))


def names_of_operations(model: keras.Model) -> list[tuple[str, str]]:
    program = trace(model, batch=2, training=True)
    return [(node.layer, node.op) for node in program.nodes]


def test_names_that_keras_gives_are_told_apart() -> None:
    """TensorFlow numbers its scopes as Keras numbers its layers: dense's scope is dense_1."""
    keras.utils.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input((4,)), *(layers.Dense(4) for _ in range(3))])
    assert names_of_operations(model) == [
        (layer, op) for layer in ("dense", "dense_1", "dense_2") for op in ("MatMul", "BiasAdd")
    ]


def test_operations_that_are_called_like_a_layer_are_told_apart() -> None:
    """Layer normalisation has operations add, add_1 and add_2, and Keras calls a layer add."""
    keras.utils.clear_session(free_memory=False)
    x = keras.Input((4,))
    y = layers.Add()([layers.LayerNormalization()(x), x])
    found = names_of_operations(keras.Model(x, y))
    assert [op for layer, op in found if layer == "add"] == ["AddV2"]
    assert {layer for layer, _ in found} == {"layer_normalization", "add"}


def test_layers_inside_others_and_repeated_calls() -> None:
    keras.utils.clear_session(free_memory=False)
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(4)])
    tied = layers.Dense(4)
    x = keras.Input((4,))
    model = keras.Model(x, Twice()(inner(tied(tied(inner(x))))))
    products = [layer for layer, op in names_of_operations(model) if op == "MatMul"]
    inside = ["dense", "dense_1"]
    assert products == [*inside, "dense_2", "dense_2", *inside, "dense_3", "dense_4"]
    assert names_of_operations(model)[-1] == ("twice", "Relu")


def test_an_early_output_is_found_whatever_ends_there() -> None:
    """A layer without an operation of its own, a nested model, or an operation without a layer."""
    x = keras.Input((4,))
    ends = {
        "identity": layers.Identity(name="identity")(layers.Dense(3)(x)),
        "nested": keras.Sequential([keras.Input((4,)), layers.Dense(3)], name="nested")(x),
        "plain": layers.Dense(3)(x) - layers.Dense(3)(x),
    }
    inputs = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    for name, end in ends.items():
        model = keras.Model(x, layers.Dense(3, name="last")(end))
        early = end._keras_history.operation.name
        program = trace(model, batch=2, training=False, early_output=early)
        assert program.early is not None
        assert program.early != program.y
        parameters = dict(zip(program.parameters, model.get_weights(), strict=True))
        tape = run(program, parameters, inputs)
        expected = keras.Model(x, [end, model.output])(inputs)
        for value, wanted in zip((program.early, program.y), expected, strict=True):
            np.testing.assert_allclose(tape[value], wanted, atol=1e-6, err_msg=name)
