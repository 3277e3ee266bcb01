"""Operations that are written in others have TensorFlow's gradients too."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers, ops

from tests.toolkit.autodiff.gradients import BATCH, around, assert_close, normal
from tests.toolkit.autodiff.gradients import check as check_by_all
from toolkit.autodiff import run, trace
from toolkit.autodiff.lower import Tuning, lower
from toolkit.autodiff.naming import named_variables

check = functools.partial(check_by_all, formulations=["columns"])
few = settings(max_examples=6, derandomize=True, deadline=None, database=None)
sizes = st.integers(3, 7)
seeds = st.integers(0, 1000)
paddings = st.sampled_from(["same", "valid"])

# --- numbers one by one -------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "selu": keras.activations.selu,
    "hard_sigmoid": keras.activations.hard_sigmoid,
    "hard_swish": layers.Activation("hard_silu"),
    "softsign": keras.activations.softsign,
    "celu": keras.activations.celu,
    "glu": keras.activations.glu,
    "log_softmax": keras.activations.log_softmax,
    "prelu": lambda x: layers.PReLU(shared_axes=[1])(x),
    "trigonometry": lambda x: ops.sin(x) * ops.cos(x) + ops.tan(0.1 * x),
    "hyperbolic": lambda x: ops.sinh(x) - ops.cosh(x),
    "logarithms": lambda x: ops.log1p(ops.abs(x)) + ops.expm1(x) + ops.logsumexp(x, 1, True),
    "rounding": lambda x: x * (ops.floor(x) + ops.ceil(x) - ops.round(x) + ops.sign(x)),
    "remainders": lambda x: x * (ops.mod(x, 2.0) + x // 3.0) + 1.0 / (x + 20.0),
    "powers": lambda x: ops.power(2.0, x) + ops.power(ops.abs(x) + 1.0, 1.5),
    "logic": lambda x: ops.where(ops.logical_and(x > -1, x != 2), x, ops.square(x)),
    "finite": lambda x: ops.where(ops.isfinite(x), x, 0.0) + ops.divide_no_nan(x, ops.relu(x)),
    "reductions": lambda x: ops.min(x, 1) + ops.prod(x, 1) + ops.std(x, 1) + ops.norm(x, axis=1),
    "running_sums": lambda x: ops.cumsum(x, axis=1) * ops.cumsum(x, axis=-1),
    "any": lambda x: ops.where(ops.any(x > 1, axis=1, keepdims=True), x, -x),
    "all": lambda x: ops.where(ops.all(x > -1, axis=1, keepdims=True), x, -x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    check(around(FUNCTIONS[name], 4, 6), 2.0 * normal((BATCH, 4, 6)))


# --- numbers on the move ------------------------------------------------------------------------

MOVES: dict[str, Callable[[Any], Any]] = {
    "a step": lambda x: x[:, 1::2, ::3],
    "backwards": lambda x: x[:, ::-1, 4:0:-2],
    "an axis less and one more": lambda x: x[:, -2, None, 1:],
    "dots": lambda x: x[..., 2:5, 1:],
    "split": lambda x: layers.Subtract()(ops.split(x, 2, axis=2)),
    "unequal split": lambda x: ops.matmul(*_swapped(ops.split(x, [2], axis=1))),
    "stack": lambda x: ops.stack([x, ops.sin(x), x], axis=2),
    "unstack": lambda x: layers.Multiply()(ops.unstack(x, 5, axis=1)),
    "flip": lambda x: ops.flip(x, (1, 2)),
    "roll": lambda x: ops.roll(x, 2, 1),
    "reflect": lambda x: ops.pad(x, ((0, 0), (2, 1), (1, 0)), mode="reflect"),
    "symmetric": lambda x: ops.pad(x, ((0, 0), (2, 1), (1, 0)), mode="symmetric"),
    "take": lambda x: ops.take(x, [0, 2, 2, -1], axis=1),
    "take neighbours": lambda x: ops.take(x, [1, 2, 3], axis=2),
    "repeat": lambda x: ops.repeat(x, 3, axis=1),
    "repeat vector": lambda x: layers.RepeatVector(3)(x[:, 0]),
}


def _swapped(parts: Any) -> Any:
    return parts[0], ops.transpose(parts[1], (0, 2, 1))


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    check(around(lambda x: ops.square(MOVES[name](x)), 5, 6))


@pytest.mark.parametrize("kind", [tf.nn.depth_to_space, tf.nn.space_to_depth])
def test_depth_and_space(kind: Any) -> None:
    check(around(lambda x: ops.square(layers.Lambda(lambda v: kind(v, 2))(x)), 4, 6, 8))


# --- products -----------------------------------------------------------------------------------

EQUATIONS = [
    ("abc,cd->abd", (5, 6), (6, 4)),
    ("abc,cde->abde", (5, 6), (6, 2, 3)),
    ("aecd,abcd->acbe", (5, 2, 3), (2, 4, 2, 3)),
    ("...c,cd->...d", (5, 6), (6, 4)),
    ("abc,d->ad", (5, 6), (4,)),
    ("ab,ab->a", (6,), (2, 6)),
    ("ab,cd->acbd", (3,), (4, 5)),
]


@pytest.mark.parametrize(("equation", "left", "right"), EQUATIONS)
def test_einsum(equation: str, left: Any, right: Any) -> None:
    class Product(layers.Layer):
        def build(self, _: Any) -> None:
            self.factor = self.add_weight(shape=right)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return tf.einsum(equation, x, self.factor)

    check(around(Product(), *left))


def test_einsum_of_three_factors_and_of_one() -> None:
    def build(x: Any) -> Any:
        product = layers.Lambda(lambda v: tf.einsum("abc,abd,acd->ad", v, v, v))(x)
        return product + layers.Lambda(lambda v: tf.einsum("abc->ac", v))(x)

    check(around(build, 6, 6))


@pytest.mark.parametrize("flip_a", [False, True])
@pytest.mark.parametrize("flip_b", [False, True])
@pytest.mark.parametrize("right", [(5, 5), (1, 1, 5, 5), (1, 3, 5, 5), (BATCH, 3, 5, 5)])
def test_batched_products(flip_a: bool, flip_b: bool, right: Any) -> None:
    class Product(layers.Layer):
        def build(self, _: Any) -> None:
            self.factor = self.add_weight(shape=right)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return tf.matmul(x, self.factor, transpose_a=flip_a, transpose_b=flip_b)

    check(around(Product(), 3, 5, 5))


ATTENTION: dict[str, Callable[[Any], Any]] = {
    "multi-head": lambda x: layers.MultiHeadAttention(2, 3)(x, x),
    "causal": lambda x: layers.MultiHeadAttention(2, 3, value_dim=4)(x, x, use_causal_mask=True),
    "grouped queries": lambda x: layers.GroupQueryAttention(3, 4, 2)(x, x),
    "scaled": lambda x: layers.Attention(use_scale=True)([x, layers.Dense(6)(x)]),
    "concatenated": lambda x: layers.Attention(score_mode="concat")([x, layers.Dense(6)(x)]),
    "additive": lambda x: layers.AdditiveAttention()([x, layers.Dense(6)(x)]),
    "dot": lambda x: layers.Dot(axes=(2, 1))([x, layers.Permute((2, 1))(layers.Dense(6)(x))]),
    "cosine": lambda x: layers.Dot(axes=-1, normalize=True)([x, layers.Dense(6)(x)]),
    "einsum dense": lambda x: layers.EinsumDense("abc,cd->abd", (5, 7), bias_axes="d")(x),
    "time distributed": lambda x: layers.TimeDistributed(layers.Dense(3))(x),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    check(around(ATTENTION[name], 5, 6))


@pytest.mark.parametrize("masked", [False, True])
def test_embedding_adds_up_the_gradients_of_equal_numbers(masked: bool) -> None:
    x = keras.Input((7,), BATCH)
    y = layers.Embedding(5, 3, mask_zero=masked)(x)
    model = keras.Model(x, layers.GlobalAveragePooling1D()(y) if masked else y)
    check(model, np.random.default_rng(0).integers(0, 5, (BATCH, 7)).astype(np.float32))


# --- normalisation, blocks, images --------------------------------------------------------------

IMAGES: dict[str, Callable[[Any], Any]] = {
    "group normalisation": layers.GroupNormalization(3, name="groups"),
    "instance normalisation": layers.GroupNormalization(-1, name="instances"),
    "unit normalisation": layers.UnitNormalization(),
    "rms normalisation": layers.RMSNormalization(),
    "normalisation": layers.Normalization(mean=np.arange(6.0), variance=np.arange(1.0, 7.0)),
    "bilinear": layers.UpSampling2D(2, interpolation="bilinear"),
    "larger": layers.Resizing(9, 7),
    "smaller": layers.Resizing(3, 2),
    "nearest": layers.Resizing(9, 3, interpolation="nearest"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    check(around(lambda x: ops.square(IMAGES[name](x)), 5, 4, 6))


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("options", [{"align_corners": True}, {"half_pixel_centers": True}, {}])
def test_resizing_by_every_convention(method: str, options: Any) -> None:
    kinds = {"bilinear": "ResizeBilinear", "nearest": "ResizeNearestNeighbor"}

    def resized(v: tf.Tensor) -> tf.Tensor:
        return getattr(tf.raw_ops, kinds[method])(images=v, size=[7, 3], **options)

    check(around(layers.Lambda(resized), 4, 6, 2))


def test_adapted_normalisation_and_squeeze_and_excite() -> None:
    adapted = layers.Normalization(name="adapted")
    adapted.adapt(5.0 + 2.0 * normal((20, 4, 4, 6)))

    def build(x: Any) -> Any:
        x = adapted(x)
        squeezed = layers.GlobalAveragePooling2D(keepdims=True)(x)
        gates = layers.Conv2D(2, 1, activation="relu")(squeezed)
        return layers.Multiply()([x, layers.Conv2D(6, 1, activation="hard_sigmoid")(gates)])

    check(around(build, 4, 4, 6))


# --- convolutions -------------------------------------------------------------------------------


@few
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=paddings,
    size=st.tuples(sizes, sizes),
    seed=seeds,
)
def test_transposed_convolution(
    kernel: Any, strides: Any, padding: str, size: Any, seed: int
) -> None:
    layer = layers.Conv2DTranspose(3, kernel, strides=strides, padding=padding)
    check(around(layer, *size, 2), seed=seed)


OTHER_TRANSPOSED = {
    "a sequence": (layers.Conv1DTranspose(3, 4, strides=2, padding="same"), (5, 2)),
    "more zeros": (layers.Conv2DTranspose(2, 3, strides=2, output_padding=1), (4, 3, 2)),
    "dilated": (layers.Conv2DTranspose(2, 3, dilation_rate=2, padding="same"), (4, 3, 2)),
    "a volume": (layers.Conv3DTranspose(2, 3, strides=2, padding="same"), (3, 2, 3, 2)),
}


@pytest.mark.parametrize("name", OTHER_TRANSPOSED)
def test_other_transposed_convolutions(name: str) -> None:
    layer, shape = OTHER_TRANSPOSED[name]
    check(around(layer, *shape))


@pytest.mark.parametrize("groups", [2, 3, 6])
@pytest.mark.parametrize("options", [{}, {"strides": 2}, {"strides": (1, 2), "padding": "same"}])
def test_grouped_convolution(groups: int, options: Any) -> None:
    """TensorFlow itself has no gradient of it on a CPU; Keras compiles it, which takes seconds."""
    layer = layers.Conv2D(6, 3, groups=groups, name="grouped", **options)
    model = around(layer, 5, 6, 6)

    def reference(x: Any, training: bool) -> tf.Tensor:
        parts = tf.split(model.get_layer("input")(x), groups, axis=3)
        kernels = tf.split(layer.kernel, groups, axis=3)
        padding = layer.padding.upper()
        done = [
            tf.nn.conv2d(a, k, layer.strides, padding) for a, k in zip(parts, kernels, strict=True)
        ]
        return tf.concat(done, 3) + layer.bias

    check(model, reference=reference)


@few
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    step=st.sampled_from([{"strides": 1}, {"strides": (2, 1, 2)}, {"strides": 3}]),
    padding=paddings,
    size=st.tuples(sizes, sizes, sizes),
    seed=seeds,
)
def test_convolution_of_a_volume(
    kernel: Any, step: Any, padding: str, size: Any, seed: int
) -> None:
    check(around(layers.Conv3D(2, kernel, padding=padding, **step), *size, 2), seed=seed)


@pytest.mark.parametrize("kind", [layers.MaxPooling3D, layers.AveragePooling3D])
@pytest.mark.parametrize("options", [{}, {"strides": 1, "padding": "same"}, {"strides": 3}])
def test_pooling_of_a_volume(kind: Any, options: Any) -> None:
    check(around(kind((2, 3, 2), **options), 5, 6, 4, 2))


# --- steps one after the other ------------------------------------------------------------------

RECURRENT: dict[str, Callable[[Any], Any]] = {
    "simple": lambda x: layers.SimpleRNN(3)(x),
    "gru": lambda x: layers.GRU(3, return_sequences=True)(x),
    "gru that resets before": lambda x: layers.GRU(3, reset_after=False)(x),
    "lstm": lambda x: layers.LSTM(3)(x),
    "lstm backwards": lambda x: layers.LSTM(3, return_sequences=True, go_backwards=True)(x),
    "both ways": lambda x: layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x),
    "both ways, last": lambda x: layers.Bidirectional(layers.GRU(2), merge_mode="sum")(x),
    "stacked": lambda x: layers.GRU(2)(layers.LSTM(3, return_sequences=True)(x)),
    "cells": lambda x: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)])(x),
    "masked": lambda x: layers.LSTM(3)(layers.Masking()(ops.relu(x))),
    "images": lambda x: layers.ConvLSTM2D(2, 2)(ops.reshape(x, (-1, 2, 3, 2, 2))),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent(name: str) -> None:
    check(around(RECURRENT[name], 6, 4))


def test_tracing_leaves_a_recurrent_layer_as_it_was() -> None:
    x = keras.Input((5, 2))
    layer = layers.LSTM(3)
    model = keras.Model(x, layer(x))
    before = layer.get_config()
    trace(model, batch=BATCH, training=True)
    assert (layer.get_config(), layer.use_cudnn) == (before, "auto")
    assert not tf.config.functions_run_eagerly()


def test_an_untrained_branch_of_the_graph_costs_nothing() -> None:
    """What an expansion makes and nothing needs is no part of the program."""
    x = keras.Input((6, 4))
    first, _ = ops.split(layers.Dense(4)(x), 2, axis=1)
    program = trace(keras.Model(x, first), batch=BATCH, training=True)
    assert [node.op for node in program.nodes].count("StridedSlice") == 1


def test_inference_and_training_of_several_layers_agree() -> None:
    x = keras.Input((6, 4))
    y = layers.MultiHeadAttention(2, 3)(x, layers.GRU(4, return_sequences=True)(x))
    model = keras.Model(x, layers.GlobalAveragePooling1D()(y))
    program = lower(trace(model, batch=BATCH, training=False), Tuning("any"))
    weights = {name: tf.constant(v) for name, v in named_variables(model).items()}
    x = tf.constant(normal((BATCH, 6, 4)))
    assert_close(run(program, weights, x)[program.y], model(x), "output")
