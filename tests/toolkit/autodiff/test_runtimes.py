"""Converted branches train in both runtimes as Keras trains them.

Every formulation of a convolution is compared in tests/toolkit/tuning/test_candidates.py.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from keras import layers

from firmware_sim.training.runtime import RUNTIMES
from toolkit.autodiff.lower import Choice, Layer, Tuning
from toolkit.bench.step.reference import Reference
from toolkit.branch.branch import Branch
from toolkit.branch.layers import BranchDropout
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import SGD, Adam
from toolkit.conversion.convert import convert_module
from toolkit.conversion.signature import Signature
from toolkit.conversion.tflite_internals import schema
from toolkit.training.module import TrainingModule

BATCH, CLASSES, STEPS = 4, 5, 3
LOSSES, WEIGHTS = 1e-4, 1e-3  # relative
ROUNDING = 2.0**-23  # of float32
DRIFTS = 5  # a runtime rounds in every operation, the reference once more at the start

Build = Callable[[keras.KerasTensor], keras.KerasTensor]
Answer = dict[str, npt.NDArray[np.float32]]


class OnlyTraining(TrainingModule):
    """Without the signatures that take long to convert and have tests of their own.

    `set_state` stays, since the converter makes a constant of what no signature writes.
    """

    def signatures(self) -> dict[str, Signature]:
        every = super().signatures()
        return {name: every[name] for name in ("train", "get_state", "set_state")}


class Always(Tuning):
    """The same formulation for every layer, in parts of a few examples."""

    def choose(self, layer: Layer) -> Choice:
        return Choice(self.runtime, part_bytes=1024)


def module_by(formulation: str, branch: Branch, batch: int) -> TrainingModule:
    return OnlyTraining(branch, batch=batch, runtime="any", tuning=Always(formulation))


def take_steps(runtime: str, folder: Path, steps: int) -> Answer:
    script = Path(__file__).with_name("take_steps.py")
    command = [sys.executable, str(script), runtime, str(folder), str(steps)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return dict(np.load(folder / "answer.npz"))


def write(folder: Path, model: bytes, x: npt.NDArray[np.float32]) -> dict[str, tf.Tensor]:
    """What take_steps.py needs; answers the batch."""
    labels = np.arange(len(x), dtype=np.int32) % CLASSES
    (folder / "model.tflite").write_bytes(model)
    np.savez(folder / "batch.npz", x=x, y=labels)
    return {"x": tf.constant(x), "y": tf.constant(labels)}


def assert_builtin_only(data: bytes) -> None:
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    assert [code.customCode for code in model.operatorCodes if code.customCode] == []
    builtins = [max(c.builtinCode, c.deprecatedBuiltinCode) for c in model.operatorCodes]
    assert schema.BuiltinOperator.CUSTOM not in builtins
    assert len(builtins) > 5


# --- one net per family of layers ---------------------------------------------------------------


def convolutions(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(4, 3, padding="same", activation="relu", name="first")(x)
    x = layers.Conv2D(6, (2, 3), strides=(1, 2))(x)
    x = layers.BatchNormalization(momentum=0.8)(x)
    x = layers.Conv2D(5, 2, dilation_rate=2, padding="same")(x)
    x = layers.ReLU(max_value=6)(x)
    x = layers.DepthwiseConv2D((3, 2), padding="same", dilation_rate=2)(x)
    x = layers.DepthwiseConv2D(3, strides=2, padding="same")(x)
    x = layers.DepthwiseConv2D(2, depth_multiplier=2)(x)
    x = layers.SeparableConv2D(6, 2, padding="same")(x)
    x = layers.Conv2D(4, 1, strides=2)(x)
    return layers.Flatten()(x)


def pooling(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(4, 2, strides=1, activation="relu", name="first")(x)  # 7 by 7, ties at zero
    parts = [
        layers.MaxPooling2D(2)(x),
        layers.MaxPooling2D((3, 2), 2, padding="same")(x),
        layers.MaxPooling2D(2, 3)(x),
        layers.AveragePooling2D(3, 2, padding="same")(x),
        layers.AveragePooling2D((2, 3))(x),
    ]
    whole = [layers.GlobalMaxPooling2D()(x), layers.GlobalAveragePooling2D()(x)]
    return layers.Concatenate()([*(layers.Flatten()(part) for part in parts), *whole])


def sequence(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Reshape((32, 4))(x)
    x = layers.Conv1D(6, 3, padding="causal", name="first")(x)
    x = layers.LayerNormalization()(x)
    x = layers.Conv1D(6, 3, strides=2, padding="same", activation="tanh")(x)
    x = layers.Conv1D(5, 2, dilation_rate=2)(x)
    x = layers.Dense(6, activation="softmax")(x)
    x = layers.Concatenate()([layers.MaxPooling1D(2)(x), layers.AveragePooling1D(3, 2, "same")(x)])
    return layers.Concatenate()(
        [layers.GlobalMaxPooling1D()(x), layers.GlobalAveragePooling1D()(x)]
    )


def elementwise(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Cropping2D(((1, 2), (0, 1)))(x)
    x = layers.Conv2D(3, 1, name="first")(x)
    x = layers.UpSampling2D((2, 1))(layers.ZeroPadding2D(((0, 1), (2, 0)))(x))
    x = layers.Permute((2, 1, 3))(x)
    gelu = keras.ops.gelu(x, approximate=True)
    names = ("sigmoid", "silu", "gelu", "softplus")
    sigmoid, silu, erf, softplus = (layers.Activation(name)(x) for name in names)
    leaky, elu, bent = layers.LeakyReLU(0.2)(x), layers.ELU()(x), layers.ELU(0.5)(x)
    parts = [
        layers.Add()([sigmoid, silu, leaky]),
        layers.Subtract()([erf, gelu]),
        layers.Multiply()([softplus, elu]),
        layers.Maximum()([x, bent]),
        layers.Average()([x, layers.PReLU()(x)]),
    ]
    return layers.Flatten()(layers.Concatenate()(parts))


def other_convolutions(x: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(4, 2, groups=2, activation="selu", name="first")(x)
    x = layers.Conv2DTranspose(6, 3, strides=2, padding="same")(x)
    x = layers.GroupNormalization(3)(x)
    gates = layers.Dense(2, activation="relu")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.Multiply()([x, layers.Dense(6, activation="hard_sigmoid")(gates)])
    x = layers.Resizing(7, 6)(x)
    volume = layers.Reshape((7, 6, 3, 2))(layers.UnitNormalization()(x))
    volume = layers.Conv3D(3, (2, 3, 2), strides=(2, 1, 1), activation="hard_silu")(volume)
    volume = layers.MaxPooling3D((1, 2, 2), padding="same")(volume)
    small = layers.UpSampling2D(2, interpolation="bilinear")(x[:, 1::3, ::-2])
    return layers.Concatenate()([layers.Flatten()(part) for part in (volume, small)])


def steps_and_attention(x: keras.KerasTensor) -> keras.KerasTensor:
    # A step of a recurrent layer is a copy of its cell: three have a first, a middle and a last.
    words = keras.ops.clip(keras.ops.round(keras.ops.abs(x[:, 0, :3, 0]) * 3.0), 0.0, 5.0)
    words = layers.Embedding(6, 4, mask_zero=True)(words)
    x = layers.Conv1D(4, 1, name="first")(layers.Reshape((8, 16))(x)[:, :3])
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    x = layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    x = layers.Attention(use_scale=True)([x, layers.Dense(6)(words)])
    ends = [layers.GRU(4)(words), layers.SimpleRNN(3)(x), layers.GRU(2, reset_after=False)(x)]
    return layers.Concatenate()([*ends, layers.Flatten()(layers.Dot(axes=2)([x, x]))])


class Repeatable:
    """Steps in TensorFlow that begin anew each time, from the same weights or beside them."""

    def __init__(self, branch: Branch, batch: dict[str, tf.Tensor]) -> None:
        self.branch, self.batch, self.reference = branch, batch, Reference(branch)
        self.train = tf.function(self.reference.train)
        self.variables = [*branch.model.variables, *self.reference.optimizer.variables]
        self.begun = [np.array(v) for v in self.variables]

    def take(self, steps: int, beside: float = 0.0) -> tuple[list[float], Answer]:
        """Losses and weights; all weights are off by this part of themselves at the start."""
        rng = np.random.default_rng(0)
        trained = {v.path for v in self.branch.model.trainable_variables}
        for variable, value in zip(self.variables, self.begun, strict=True):
            off = 1 + beside * rng.choice([-1, 1], value.shape) if variable.path in trained else 1
            variable.assign(value * off if beside else value)
        losses = [float(self.train(**self.batch)) for _ in range(steps)]
        return losses, {name: np.array(v) for name, v in self.branch.weights().items()}


@pytest.mark.parametrize(
    ("net", "formulation", "steps"),
    [
        (convolutions, "both", STEPS),
        *((net, "columns", STEPS) for net in (pooling, sequence, elementwise)),
        *((net, "columns", 20) for net in (other_convolutions, steps_and_attention)),
    ],
)
def test_training_equals_that_of_keras(
    net: Build, formulation: str, steps: int, tmp_path: Path
) -> None:
    """Over many steps rounding grows, so TensorFlow's own drift is the measure: how far it comes
    from itself if it starts one rounding beside."""
    keras.utils.set_random_seed(1)
    x = keras.Input((8, 8, 2))
    model = keras.Model(x, layers.Dense(CLASSES, name="logits")(net(x)))
    branch = Branch("test", model, ("first",), Supervised(optimizer=SGD(0.1, momentum=0.9)))
    before = {name: np.array(v) for name, v in branch.weights().items()}
    data = convert_module(module_by(formulation, branch, BATCH))
    assert_builtin_only(data)
    frames = np.random.default_rng(0).normal(size=(BATCH, 8, 8, 2)).astype(np.float32)
    reference = Repeatable(branch, write(tmp_path, data, frames))
    losses, after = reference.take(steps)
    drifted, elsewhere = reference.take(steps, ROUNDING) if steps > STEPS else (losses, after)
    assert losses[0] != pytest.approx(losses[-1], rel=100 * LOSSES), "the steps are too small"
    for runtime in RUNTIMES:
        answer = take_steps(runtime, tmp_path, steps)
        apart = DRIFTS * np.abs(np.subtract(drifted, losses)) + LOSSES * np.abs(losses)
        apart += ROUNDING * losses[0]  # a loss near zero is a difference of large numbers
        assert (np.abs(answer["losses"] - losses) <= apart).all(), runtime
        for name in before:
            moved, expected = answer[name] - before[name], after[name] - before[name]
            scale = np.max(np.abs(expected))
            drift = np.max(np.abs(elsewhere[name] - after[name]))
            atol = WEIGHTS * max(scale, 1e-3) + DRIFTS * drift
            np.testing.assert_allclose(moved, expected, rtol=0, atol=atol, err_msg=name)
        assert answer["optimizer/step"] == steps


@pytest.mark.parametrize("layer", [layers.Dropout, BranchDropout])
def test_every_step_drops_anew(layer: Callable[[float], keras.Layer], tmp_path: Path) -> None:
    """The loss counts what is kept of the identity, one number in each row."""
    x = keras.Input((BATCH,))
    ones = layers.Dense(1, kernel_initializer="ones", use_bias=False, name="sum")
    model = keras.Model(x, ones(layer(0.5)(x)))
    branch = Branch("test", model, ("sum",), Supervised("mse", SGD(0.0)))
    data = convert_module(module_by("columns", branch, BATCH))
    assert_builtin_only(data)
    (tmp_path / "model.tflite").write_bytes(data)
    # A row sums up to 2 if its number is kept and else to 0, so its squared error is 4 or 0.
    examples = {"x": np.eye(BATCH, dtype=np.float32), "y": np.zeros((BATCH, 1), np.float32)}
    np.savez(tmp_path / "batch.npz", **examples)
    for runtime in RUNTIMES:
        kept = take_steps(runtime, tmp_path, 100)["losses"] / 4 * BATCH
        np.testing.assert_allclose(kept, np.round(kept), atol=1e-5)
        assert abs(np.mean(kept) / BATCH - 0.5) < 4 * 0.5 / np.sqrt(100 * BATCH)
        assert {0, 1, 2, 3, 4} == set(np.round(kept))


def test_mobilenet_learns_a_batch(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    whole = keras.applications.MobileNetV2(
        alpha=0.35, input_shape=(32, 32, 3), weights=None, include_top=False
    )
    # Its first three blocks have every kind of layer that it has; all of it takes a minute.
    features = layers.GlobalAveragePooling2D()(whole.get_layer("block_2_add").output)
    model = keras.Model(whole.input, layers.Dense(10)(features))
    branch = Branch("mobilenet", model, ("Conv1",), Supervised(optimizer=Adam(0.005)))
    data = convert_module(module_by("columns", branch, 8))
    assert_builtin_only(data)
    write(tmp_path, data, np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype(np.float32))
    for runtime in RUNTIMES:
        losses = take_steps(runtime, tmp_path, 20)["losses"]
        assert losses[0] == pytest.approx(np.log(10), rel=0.5)  # it knows nothing yet
        assert losses[-1] < 0.2 * losses[0]
