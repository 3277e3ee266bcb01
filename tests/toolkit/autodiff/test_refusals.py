"""What cannot be trained is refused early, in one sentence that names the layer."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from toolkit.autodiff import run, trace
from toolkit.autodiff.naming import named_variables
from toolkit.errors import ModelError, UnsupportedOp


class Function(layers.Layer):
    """Any function of tensors as a layer, with a weight before it."""

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor], name: str) -> None:
        super().__init__(name=name)
        self.function = function

    def build(self, shape: tuple[int, ...]) -> None:
        self.shift = self.add_weight(shape=shape[1:], initializer="ones", name="shift")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x + self.shift)


def replay(model: keras.Model) -> None:
    """Trace, forward and backward pass of a batch of two."""
    program = trace(model, batch=2, training=True)
    weights = {name: tf.constant(v) for name, v in named_variables(model).items()}
    tape = run(program, weights, tf.ones((2, *model.input_shape[1:])))
    tape.gradients({program.y: tf.ones_like(tape[program.y])}, tuple(weights))


def _doubled(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda v: v[0, 0, 0] < 9.0, lambda v: v * 2.0, [x])[0]


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: tf.reshape(tf.linalg.inv(x), [2, 16]), "MatrixInverse"),
        (lambda x: tf.sort(x, axis=-1), "TopKV2"),
        (lambda x: x**x, "Pow"),
        (lambda x: tf.einsum("bii->bi", x), "Einsum"),
        (lambda x: tf.gather(x, tf.argmax(x, -1), axis=1, batch_dims=1), "GatherV2"),
        (_doubled, "StatelessWhile"),
        (lambda x: tf.nn.conv2d(x[..., None], tf.ones([3, 3, 1, 1]), 1, [[0, 0]] * 4), "Conv2D"),
    ],
)
def test_an_operation_without_a_rule_is_refused_by_the_name_of_its_layer(
    function: Callable[..., Any], op: str
) -> None:
    x = keras.Input((4, 4))
    y = layers.Dense(4, name="before")(x)
    y = Function(function, name="my_odd_layer")(y)
    with pytest.raises(UnsupportedOp, match="'my_odd_layer'") as caught:
        replay(keras.Model(x, layers.Flatten(name="after")(y)))
    assert (caught.value.layer, caught.value.op) == ("my_odd_layer", op)
    assert str(caught.value).endswith("which cannot be trained with TFLite's builtin operations.")


def test_a_lambda_layer_is_refused_by_its_name() -> None:
    x = keras.Input((4, 4, 2))
    model = keras.Model(x, layers.Lambda(lambda x: tf.nn.lrn(x), name="local")(x))
    with pytest.raises(UnsupportedOp, match="layer 'local' needs the operation LRN, "):
        replay(model)


def test_the_layer_inside_a_nested_model_is_named() -> None:
    inner = keras.Sequential([keras.Input((4, 4)), Function(tf.linalg.inv, name="inverse")])
    model = keras.Sequential([keras.Input((4, 4)), inner, layers.Flatten()])
    with pytest.raises(UnsupportedOp, match="'inverse'"):
        replay(model)


def test_a_shape_that_is_unknown_until_it_runs_is_refused() -> None:
    x = keras.Input((4,))
    chosen = Function(lambda x: tf.reshape(tf.boolean_mask(x, x > 0), [-1, 1]), name="choose")
    with pytest.raises(ModelError, match="layer 'choose' has a shape that is unknown"):
        trace(keras.Model(x, chosen(x)), batch=2, training=True)


def test_several_outputs_are_refused() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, [layers.Dense(2)(x), layers.Dense(3)(x)])
    with pytest.raises(ModelError, match=r"several outputs; a branch has exactly one\."):
        trace(model, batch=2, training=True)


def test_several_inputs_are_refused() -> None:
    a, b = keras.Input((4,)), keras.Input((4,))
    with pytest.raises(ModelError, match="a branch has one input of a fixed shape"):
        trace(keras.Model([a, b], layers.Add()([a, b])), batch=2, training=True)


def test_an_input_of_unknown_size_is_refused() -> None:
    x = keras.Input((None, None, 3))
    model = keras.Model(x, layers.GlobalMaxPooling2D()(layers.Conv2D(2, 3)(x)))
    with pytest.raises(ModelError, match=r"input shape is \(None, None, None, 3\)"):
        trace(model, batch=2, training=True)


def test_a_model_that_was_never_built_is_refused() -> None:
    with pytest.raises(ModelError, match="a branch has one input of a fixed shape"):
        trace(keras.Sequential([layers.Dense(2)]), batch=2, training=True)


def test_two_tensors_of_one_name_are_refused() -> None:
    x = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(2, name="dense")], name="same")
    y = layers.Add()([inner(x), layers.Dense(2, name="dense")(x)])
    with pytest.raises(ModelError, match="'dense/kernel'; name its layers apart"):
        trace(keras.Model(x, y, name="same"), batch=2, training=True)
