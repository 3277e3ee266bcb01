"""Every supported layer has TensorFlow's gradients: of its weights and of what flows into it."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import layers

from tests.toolkit.autodiff.gradients import (
    BATCH,
    Shift,
    around,
    assert_close,
    check,
    normal,
    steps,
)
from toolkit.autodiff import run, trace
from toolkit.autodiff.naming import named_variables

few = settings(max_examples=12, derandomize=True, deadline=None, database=None)
some = settings(few, max_examples=25)
sizes = st.integers(5, 9)
channels = st.integers(1, 3)
paddings = st.sampled_from(["same", "valid"])
seeds = st.integers(0, 1000)


# --- convolutions and products ------------------------------------------------------------------


@some
@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=paddings,
    size=st.tuples(sizes, sizes),
    filters=st.tuples(channels, channels),
    seed=seeds,
)
def test_conv2d(
    kernel: Any, strides: Any, padding: str, size: Any, filters: Any, seed: int
) -> None:
    # There TensorFlow's gradient with oneDNN is wrong, in about every second call: steps to the
    # right alone, of one pixel, or of one channel with one window to the right.
    one_window = padding == "valid" and size[1] - kernel[1] < strides[1]
    wrong = kernel == (1, 1) or (filters[0] == 1 and one_window)
    assume(not (wrong and strides[0] == 1 < strides[1]))
    layer = layers.Conv2D(filters[1], kernel, strides=strides, padding=padding)
    check(around(layer, *size, filters[0]), seed=seed)


@pytest.mark.parametrize(
    ("kernel", "strides"), [(1, 3), (2, 4), ((1, 3), (3, 1)), ((4, 1), (2, 3)), (3, (1, 2)), (8, 4)]
)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_conv2d_with_steps_larger_than_and_unlike_the_kernel(
    kernel: Any, strides: Any, padding: str
) -> None:
    check(around(layers.Conv2D(3, kernel, strides=strides, padding=padding), 11, 9, 2))


@few
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dilation=st.sampled_from([2, (1, 2), (3, 2)]),
    padding=paddings,
    filters=st.tuples(channels, channels),
    seed=seeds,
)
def test_dilated_conv2d(kernel: Any, dilation: Any, padding: str, filters: Any, seed: int) -> None:
    layer = layers.Conv2D(filters[1], kernel, dilation_rate=dilation, padding=padding)
    check(around(layer, 11, 10, filters[0]), seed=seed)


class Dilated(layers.Layer):
    """TensorFlow's own dilated convolution; Keras takes the pixels apart around a dense one."""

    def __init__(self, kernel: tuple[int, int], filters: Any, padding: str) -> None:
        super().__init__()
        self.size, self.filters, self.padding = kernel, filters, padding

    def build(self, shape: tuple[int, ...]) -> None:
        self.kernel = self.add_weight(shape=(*self.size, shape[-1], self.filters))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(x, self.kernel, 1, self.padding, dilations=(2, 3))


@pytest.mark.parametrize("kernel", [(3, 2), (1, 3)])
@pytest.mark.parametrize("filters", [1, 4])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_dilation_within_the_operation(kernel: Any, filters: Any, padding: str) -> None:
    check(around(Dilated(kernel, filters, padding), 8, 9, 2))


@some
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    step=st.sampled_from([{"strides": 1}, {"strides": 2}, {"strides": 3}, {"dilation_rate": 2}]),
    padding=paddings,
    size=st.tuples(st.integers(7, 9), st.integers(7, 9)),
    multiplier=st.integers(1, 2),
    c=channels,
    seed=seeds,
)
def test_depthwise_conv2d(
    kernel: Any, step: Any, padding: str, size: Any, multiplier: int, c: int, seed: int
) -> None:
    layer = layers.DepthwiseConv2D(kernel, padding=padding, depth_multiplier=multiplier, **step)
    check(around(layer, *size, c), seed=seed)


@few
@given(kernel=st.integers(1, 3), stride=st.integers(1, 3), padding=paddings, seed=seeds)
def test_separable_conv2d(kernel: Any, stride: Any, padding: str, seed: int) -> None:
    layer = layers.SeparableConv2D(3, kernel, strides=stride, padding=padding, depth_multiplier=2)
    check(around(layer, 7, 6, 2), seed=seed)


@few
@given(
    kernel=st.integers(1, 4),
    step=st.sampled_from([{"strides": 1}, {"strides": 2}, {"strides": 3}, {"dilation_rate": 2}]),
    padding=st.sampled_from(["same", "valid", "causal"]),
    size=sizes,
    filters=st.tuples(channels, channels),
    seed=seeds,
)
def test_conv1d(kernel: Any, step: Any, padding: str, size: Any, filters: Any, seed: int) -> None:
    layer = layers.Conv1D(filters[1], kernel, padding=padding, **step)
    check(around(layer, size, filters[0]), seed=seed)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("use_bias", [True, False])
def test_dense(shape: Any, use_bias: bool) -> None:
    check(around(layers.Dense(4, use_bias=use_bias), *shape))


# --- pooling ------------------------------------------------------------------------------------

pools = {
    "pool_size": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "strides": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "padding": paddings,
    "size": st.tuples(sizes, sizes),
    "seed": seeds,
}


@some
@given(values=st.sampled_from([normal, steps]), relu=st.booleans(), **pools)
def test_max_pooling_gives_to_the_first_of_equal_maxima(
    values: Any, relu: bool, pool_size: Any, strides: Any, padding: str, size: Any, seed: int
) -> None:
    pool = layers.MaxPooling2D(pool_size, strides, padding)
    x = values((BATCH, *size, 2), seed)
    check(around(lambda x: pool(keras.ops.relu(x)) if relu else pool(x), *size, 2), x, seed)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("pool", "stride"), [(2, 2), (3, 3), ((2, 3), (2, 3)), (3, 2), (3, 1)])
@pytest.mark.parametrize("level", [0.0, -2.5, 1e30])
def test_max_pooling_of_a_flat_image(pool: Any, stride: Any, padding: str, level: float) -> None:
    flat = np.full((BATCH, 7, 8, 2), level, np.float32)
    check(around(layers.MaxPooling2D(pool, stride, padding), 7, 8, 2), flat)


@some
@given(**pools)
def test_average_pooling(pool_size: Any, strides: Any, padding: str, size: Any, seed: int) -> None:
    check(around(layers.AveragePooling2D(pool_size, strides, padding), *size, 2), seed=seed)


@few
@given(
    kind=st.sampled_from([layers.MaxPooling1D, layers.AveragePooling1D]),
    pool=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=paddings,
    size=sizes,
    seed=seeds,
)
def test_pooling_of_a_sequence(
    kind: Any, pool: Any, stride: Any, padding: str, size: Any, seed: int
) -> None:
    check(around(kind(pool, stride, padding), size, 3), steps((BATCH, size, 3), seed), seed)


@pytest.mark.parametrize("values", [normal, steps])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (layers.GlobalMaxPooling1D, (7, 3)),
        (layers.GlobalAveragePooling1D, (7, 3)),
        (layers.GlobalMaxPooling2D, (5, 4, 3)),
        (layers.GlobalAveragePooling2D, (5, 4, 3)),
    ],
)
def test_global_pooling(kind: Any, shape: Any, keepdims: bool, values: Any) -> None:
    check(around(kind(keepdims=keepdims), *shape), values((BATCH, *shape)))


# --- normalisation ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (6, 3), (4, 5, 3)])
@pytest.mark.parametrize(
    "options", [{}, {"scale": False}, {"center": False}, {"momentum": 0.5, "epsilon": 0.1}]
)
def test_batch_normalization_and_its_moving_statistics(shape: Any, options: dict[str, Any]) -> None:
    x = 3.0 * normal((BATCH, *shape)) + 1.0
    # Two examples alone normalise to ±1 whatever they are, and no gradient is left to compare.
    epsilon = {"epsilon": 0.1} if len(shape) == 1 else {}
    model = around(layers.BatchNormalization(name="norm", **{**epsilon, **options}), *shape)
    tape = check(model, x)
    assert set(tape.updates()) == {"norm/moving_mean", "norm/moving_variance"}
    share = 1.0 - options.get("momentum", 0.99)
    axes = tuple(range(len(shape)))
    assert_close(tape.updates()["norm/moving_mean"], share * x.mean(axes), "mean")
    assert_close(tape.updates()["norm/moving_variance"], 1 - share + share * x.var(axes), "var")


@pytest.mark.parametrize(("shape", "axis"), [((6,), -1), ((4, 5), -1), ((3, 4, 5), (1, 2, 3))])
@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False}])
def test_layer_normalization(shape: Any, axis: Any, options: dict[str, Any]) -> None:
    check(around(layers.LayerNormalization(axis=axis, **options), *shape))


# --- activations --------------------------------------------------------------------------------


def activation(name: str, **options: bool) -> Callable[[], keras.Layer]:
    function = keras.activations.get(name)
    return lambda: layers.Activation(functools.partial(function, **options), name=name)


ACTIVATIONS = {
    "relu": layers.ReLU,
    "relu6": lambda: layers.ReLU(max_value=6),
    "relu4": lambda: layers.ReLU(max_value=4),
    "leaky_relu": lambda: layers.LeakyReLU(0.1),
    "elu": layers.ELU,
    "elu_half": lambda: layers.ELU(0.5),
    "sigmoid": activation("sigmoid"),
    "tanh": activation("tanh"),
    "silu": activation("silu"),
    "gelu": activation("gelu", approximate=False),
    "gelu_tanh": activation("gelu", approximate=True),
    "softplus": activation("softplus"),
    "softmax": layers.Softmax,
    "softmax_of_rows": lambda: layers.Softmax(axis=1),
    "mish": activation("mish"),
    "hard_silu": activation("hard_silu"),
    "prelu": layers.PReLU,
}
LARGEST = 12.0  # the tails of every activation, where naive formulas overflow or cancel


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    x = np.linspace(-LARGEST, LARGEST, BATCH * 60, dtype=np.float32)
    np.random.default_rng(0).shuffle(x)
    check(around(ACTIVATIONS[name](), 5, 4, 3), x.reshape(BATCH, 5, 4, 3))


@pytest.mark.parametrize("name", ["relu", "relu6", "relu4", "leaky_relu", "elu", "elu_half"])
def test_activation_at_its_corners(name: str) -> None:
    corners = [-6, -1e-30, -0.0, 0, 1e-30, 4, 5, 6, 7]
    x = np.resize(np.array(corners, np.float32), (BATCH, len(corners)))
    check(around(ACTIVATIONS[name](), len(corners)), x)


# --- several inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize("values", [normal, steps])
@pytest.mark.parametrize("shape", [(5,), (4, 3, 2)])
@pytest.mark.parametrize(
    "kind",
    [layers.Add, layers.Subtract, layers.Multiply, layers.Maximum, layers.Minimum, layers.Average],
)
def test_merging(kind: Any, shape: Any, values: Any) -> None:
    def build(x: Any) -> Any:
        return kind()([layers.ReLU()(x), Shift(name="input_too")(keras.ops.square(x))])

    check(around(build, *shape), values((BATCH, *shape)))


@pytest.mark.parametrize("kind", [layers.Add, layers.Multiply, layers.Maximum])
def test_merging_with_broadcasting(kind: Any) -> None:
    check(around(lambda x: kind()([x, layers.GlobalMaxPooling2D(keepdims=True)(x)]), 4, 3, 2))


@pytest.mark.parametrize("axis", [1, 2, 3, -1])
def test_concatenate(axis: Any) -> None:
    def build(x: Any) -> Any:
        return layers.Concatenate(axis)([x, layers.Activation("tanh")(x), x])

    check(around(build, 4, 3, 2))


def test_a_value_that_is_used_often_adds_up_its_gradients() -> None:
    def build(x: Any) -> Any:
        y = layers.Conv2D(2, 3, padding="same")(x)
        return layers.Add()([x, y, layers.Multiply()([x, y])])

    check(around(build, 5, 4, 2))


def test_nothing_flows_back_through_a_stopped_gradient() -> None:
    check(around(lambda x: x * keras.ops.stop_gradient(keras.ops.exp(x)), 4))


def test_a_layer_that_is_used_twice() -> None:
    layer = layers.Dense(4, activation="tanh")
    check(around(lambda x: layer(layer(x)), 4))


# --- layers that only move numbers --------------------------------------------------------------


MOVES = {
    "flatten": layers.Flatten,
    "reshape": lambda: layers.Reshape((3, -1)),
    "permute": lambda: layers.Permute((3, 1, 2)),
    "padding": lambda: layers.ZeroPadding2D(((1, 2), (0, 3))),
    "cropping": lambda: layers.Cropping2D(((1, 2), (0, 3))),
    "upsampling": lambda: layers.UpSampling2D((2, 3)),
    "rescaling": lambda: layers.Rescaling(0.5, 1.0),
}


@pytest.mark.parametrize("name", MOVES)
def test_moving(name: str) -> None:
    layer = MOVES[name]()
    # The squares make every gradient depend on where its number came from.
    check(around(lambda x: keras.ops.square(layer(x)), 6, 5, 2))


def test_reshape_and_back_costs_nothing() -> None:
    model = around(lambda x: layers.Reshape((6, 5))(layers.Flatten()(x)), 6, 5)
    program = trace(model, batch=BATCH, training=True)
    last = program.producer(program.y)
    assert last is not None and last.op == "AddV2"
    check(model)


def test_only_what_the_named_parameters_reach_is_differentiated() -> None:
    model = around(lambda x: layers.Dense(3, name="b")(layers.Dense(4, name="a")(x)), 5)
    program = trace(model, batch=BATCH, training=True)
    weights = {name: tf.constant(v) for name, v in named_variables(model).items()}
    tape = run(program, weights, tf.constant(normal((BATCH, 5))))
    found = tape.gradients({program.y: tf.ones((BATCH, 3))}, ("b/bias",))
    assert set(found) == {"b/bias"}
    assert_close(found["b/bias"], np.full(3, BATCH, np.float32), "bias")
    (product, _) = (node for node in program.nodes if node.layer == "b")
    assert product.output not in program.active(frozenset({"b/bias"}))


def test_input_is_cast_and_scaled() -> None:
    model = around(layers.Dense(3, name="dense"), 4)
    pixels = np.arange(BATCH * 4, dtype=np.uint8).reshape(BATCH, 4) * 30
    program = trace(model, batch=BATCH, training=False, input_dtype="uint8", input_scale=1 / 255)
    weights = {name: tf.constant(v) for name, v in named_variables(model).items()}
    tape = run(program, weights, tf.constant(pixels))
    assert_close(tape[program.y], model(pixels.astype(np.float32) / 255), "output")
