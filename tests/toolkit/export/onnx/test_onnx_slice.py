"""The slice computes what the branch's stem computes, and says the same of the same stem."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from keras import layers
from onnx import numpy_helper

from broker.aggregator.slice_file import read_slice
from broker.protocol.slice import Slice, first_difference
from toolkit import zoo
from toolkit.autodiff.blocks import MATMUL
from toolkit.autodiff.rules import RULES
from toolkit.autodiff.rules import random as random_rules
from toolkit.branch.branch import Branch
from toolkit.errors import ModelError, UnsupportedOp
from toolkit.export.onnx.operations import OPS
from toolkit.export.onnx.slice import build_slice


def data_of(branch: Branch) -> bytes:
    return bytes(build_slice(branch).SerializeToString(deterministic=True))


def slice_of(branch: Branch) -> Slice:
    return read_slice(data_of(branch))[0]


def assert_same_output(branch: Branch, *last: str) -> None:
    """onnxruntime against Keras, at the outputs of the last shared layers."""
    rng = np.random.default_rng(7)
    shape = (1, *branch.input_shape)
    if branch.input_dtype == "uint8":
        x = rng.integers(0, 256, shape).astype(np.uint8)
    else:
        x = rng.standard_normal(shape).astype(np.float32)
    scaled = x.astype(np.float32) * np.float32(branch.input_scale)
    stems = [keras.Model(branch.model.inputs, branch.model.get_layer(n).output) for n in last]
    wanted = [stem([scaled]) for stem in stems]
    session = onnxruntime.InferenceSession(data_of(branch), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x})
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, np.asarray(theirs), rtol=1e-5, atol=1e-5)


def randomised(model: keras.Model) -> keras.Model:
    """Fresh biases and moving statistics are zeros and ones, which hide mistakes."""
    rng = np.random.default_rng(3)
    for v in model.variables:
        if v.dtype == "float32":
            v.assign(rng.uniform(0.1, 0.6, v.shape).astype(np.float32))
    return model


def branch_of(*stack: Any, shared: tuple[str, ...], shape: tuple[int, ...] = (9, 11, 3)) -> Branch:
    """A chain of layers between the input and a head that is not shared."""
    head = [layers.Flatten(name="flatten"), layers.Dense(2, name="head")]
    model = keras.Sequential([keras.Input(shape), *stack, *head])
    return Branch("custom", randomised(model), shared)


@pytest.mark.parametrize(("task", "name", "topology"), zoo.names())
def test_zoo_slices_compute_the_stem(task: str, name: str, topology: str) -> None:
    branch = zoo.build(task, name, topology)
    randomised(branch.model)
    assert_same_output(branch, branch.shared_layers[-1])


@pytest.mark.parametrize(("task", "name", "topology"), zoo.names())
def test_initialisers_are_the_shared_tensors_in_keras_layout(
    task: str, name: str, topology: str
) -> None:
    branch = zoo.build(task, name, topology)
    model = build_slice(branch)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert tuple(stored) == branch.shared_names
    _, values = read_slice(model.SerializeToString())
    for tensor, array in branch.weights().items():
        if tensor in stored:
            np.testing.assert_array_equal(stored[tensor], array)
            np.testing.assert_array_equal(values[tensor], array)


@pytest.mark.parametrize(("task", "merge"), [("digits", "samples"), ("cartpole", "mean")])
def test_the_merge_that_fits_is_stated(task: str, merge: str) -> None:
    """Players are averaged plainly, others by their samples; no fingerprint depends on it."""
    branch = zoo.build(task, "lightweight")
    model = build_slice(branch)
    assert {entry.key: entry.value for entry in model.metadata_props} == {"merge": merge}
    found = read_slice(model.SerializeToString())[0]
    del model.metadata_props[:]
    assert read_slice(model.SerializeToString())[0] == found


STACKS: dict[str, list[Any]] = {
    "batch norm, depthwise, gelu, mean pool": [
        lambda: layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False, name="first"),
        lambda: layers.BatchNormalization(name="norm"),
        lambda: layers.DepthwiseConv2D(
            3, depth_multiplier=2, padding="same", activation="gelu", name="depthwise"
        ),
        lambda: layers.AveragePooling2D(3, 2, padding="same", name="mean"),
        lambda: layers.Conv2D(5, (1, 2), dilation_rate=2, activation="swish", name="last"),
    ],
    "dilated and strided depthwise": [
        lambda: layers.DepthwiseConv2D(3, dilation_rate=2, padding="same", name="first"),
        lambda: layers.DepthwiseConv2D((2, 3), strides=2, padding="same", name="last"),
    ],
    "separable, layer norm": [
        lambda: layers.SeparableConv2D(4, 3, activation="elu", name="first"),
        lambda: layers.LayerNormalization(name="norm"),
        lambda: layers.MaxPooling2D(3, 2, padding="same", name="pool"),
        lambda: layers.GroupNormalization(2, name="last"),
    ],
    "padding, cropping, upsampling": [
        lambda: layers.ZeroPadding2D(((1, 2), (0, 3)), name="pad"),
        lambda: layers.Conv2D(2, 3, activation="relu6", name="first"),
        lambda: layers.Cropping2D(((1, 0), (2, 1)), name="crop"),
        lambda: layers.UpSampling2D(2, name="up"),
        lambda: layers.Permute((2, 1, 3), name="permute"),
        lambda: layers.Conv2D(2, 2, strides=3, activation="leaky_relu", name="last"),
    ],
    "dense on pixels, global pool": [
        lambda: layers.Dense(4, activation="hard_swish", name="first"),
        lambda: layers.PReLU(name="prelu"),
        lambda: layers.GlobalAveragePooling2D(name="pool"),
        lambda: layers.Dense(4, activation="tanh", name="second"),
        lambda: layers.Dense(4, activation="softplus", name="last"),
    ],
    "further activations": [
        lambda: layers.Dense(4, activation="sigmoid", name="first"),
        lambda: layers.GlobalMaxPooling2D(name="pool"),
        lambda: layers.Dense(4, activation=keras.ops.abs, name="second"),
        lambda: layers.Dense(4, activation=keras.ops.square, name="third"),
        lambda: layers.Dense(4, activation=keras.ops.exp, name="fourth"),
        lambda: layers.UnitNormalization(name="unit"),
        lambda: layers.Dense(4, activation="softmax", name="last"),
    ],
}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("all_shared", [True, False], ids=["all shared", "ends shared"])
def test_other_layers_compute_the_same(stack: str, all_shared: bool) -> None:
    """What lies between shared layers is computed too, from constants."""
    made = [make() for make in STACKS[stack]]
    shared = tuple(layer.name for layer in made) if all_shared else ("first", "last")
    branch = branch_of(*made, shared=shared)
    assert_same_output(branch, "last")
    names = [tensor.name for tensor in build_slice(branch).graph.initializer]
    assert sorted(names) == sorted(branch.shared_names)


ops = keras.ops
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "extrema": lambda x: ops.maximum(x, -0.1) + ops.minimum(x, 0.2),
    "logarithm": lambda x: ops.log(1.0 + ops.sqrt(ops.abs(x))),
    "powers": lambda x: ops.power(ops.abs(x) + 0.5, 1.5) - ops.rsqrt(ops.square(x) + 1.0),
    "sums": lambda x: x - ops.sum(x, axis=(1, 2), keepdims=True) / ops.max(x, 3, keepdims=True),
    "choice": lambda x: ops.where(x > 0.1, x, ops.where(x <= -0.1, -x, 2.0 * x)),
    "pieces": lambda x: ops.concatenate([x[:, 1:-1], x[:, :, :, 0:1][:, 2:] * x[:, 2:]], axis=1),
    "one row": lambda x: x + ops.expand_dims(x[:, -2], 1),
    "products": lambda x: ops.matmul(ops.matmul(x, ops.transpose(x, (0, 1, 3, 2))), x),
    "flipped product": lambda x: tf.matmul(x, tf.matmul(x, x, transpose_a=True)),
    "padding": lambda x: ops.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0)), constant_values=0.5),
    "repetition": lambda x: (
        ops.tile(x, (1, 2, 1, 1)) + ops.broadcast_to(x[:, :1, :1], (1, 14, 9, 2))
    ),
    "errors": lambda x: ops.erf(x) * ops.erfc(x) + ops.sigmoid(x),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_compute_the_same(function: str) -> None:
    branch = branch_of(
        layers.Conv2D(2, 3, name="first"),
        layers.Lambda(FUNCTIONS[function], name="function"),
        layers.Conv2D(2, 1, name="last"),
        shared=("first", "last"),
    )
    assert_same_output(branch, "last")


def test_one_dimensional_convolutions_compute_the_same() -> None:
    branch = branch_of(
        layers.Conv1D(4, 3, strides=2, padding="same", activation="relu", name="first"),
        layers.MaxPooling1D(2, name="pool"),
        layers.Conv1D(4, 2, name="last"),
        shared=("first", "last"),
        shape=(20, 3),
    )
    assert_same_output(branch, "last")


def forked(order: tuple[str, ...], *, tail: int = 0) -> Branch:
    """Two shared paths behind a shared convolution, made in any order, with any rest."""
    x = keras.Input((6, 6, 2))
    stem = layers.Conv2D(3, 3, name="stem")(x)
    ends = {name: layers.Conv2D(2, 1, activation="relu", name=name)(stem) for name in order}
    left = ends["left"]
    for i in range(tail):
        left = layers.Conv2D(2, 1, name=f"tail{i}")(left)
    joined = layers.Concatenate(name="join")([left, ends["right"]])
    y = layers.Dense(2, name="head")(layers.Flatten(name="flatten")(joined))
    model = randomised(keras.Model(x, y))
    return Branch("forked", model, ("stem", "left", "right"))


def test_several_last_layers_give_several_outputs() -> None:
    assert_same_output(forked(("left", "right")), "left", "right")


def test_the_graph_does_not_depend_on_the_order_of_tracing() -> None:
    one, other = forked(("left", "right")), forked(("right", "left"), tail=3)
    assert slice_of(one) == slice_of(other)
    assert without_values(one) == without_values(other)


def test_residual_and_tied_layers_compute_the_same() -> None:
    x = keras.Input((6, 6, 2))
    tied = layers.Conv2D(2, 3, padding="same", activation="relu", name="tied")
    y = layers.Add(name="add")([tied(tied(x)), x])
    last = layers.Conv2D(2, 1, name="last")(y)
    model = keras.Model(x, layers.Dense(2, name="head")(layers.Flatten(name="flatten")(last)))
    branch = Branch("residual", randomised(model), ("tied", "last"))
    assert_same_output(branch, "last")
    assert [t.name for t in slice_of(branch).tensors] == list(branch.shared_names)


def nested(inner: str = "conv") -> Branch:
    block = keras.Sequential(
        [keras.Input((6, 6, 2)), layers.Conv2D(2, 3, name="conv"), layers.ReLU(name="relu")],
        name="block",
    )
    x = keras.Input((6, 6, 2))
    y = layers.Conv2D(1, 1, name=inner)(block(x))
    model = keras.Model(x, layers.Flatten(name="flatten")(y))
    return Branch("nested", randomised(model), ("block",))


def test_a_shared_block_is_shared_with_all_inside() -> None:
    branch = nested("other")
    assert_same_output(branch, "block")
    assert "Relu" in slice_of(branch).tensors[0].role


def test_a_name_both_shared_and_local_is_refused() -> None:
    with pytest.raises(ModelError, match="a shared and a local layer are both called 'conv'"):
        build_slice(nested("conv"))


def test_an_operation_without_counterpart_is_refused_by_layer() -> None:
    branch = branch_of(
        layers.Conv2D(2, 3, name="first"),
        layers.Activation(keras.ops.arctan, name="bend"),
        layers.Conv2D(2, 1, name="last"),
        shared=("first", "last"),
    )
    with pytest.raises(UnsupportedOp, match="layer 'bend' needs the operation Atan"):
        build_slice(branch)


def test_whatever_can_be_trained_can_be_sliced() -> None:
    never_traced = {*random_rules.RULES, MATMUL}
    assert RULES.keys() - never_traced <= OPS.keys()


def without_values(branch: Branch) -> bytes:
    model = build_slice(branch)
    for tensor in model.graph.initializer:
        tensor.raw_data = b""
    return bytes(model.SerializeToString(deterministic=True))


PAIRS = [("atari", "share-first")]
PAIRS += [(task, way) for task in ("cifar10", "digits") for way in ("share-first", "cascading")]


@pytest.mark.parametrize(("task", "topology"), PAIRS)
def test_both_branches_of_a_pair_have_the_same_graph(task: str, topology: str) -> None:
    light, full = (zoo.build(task, name, topology) for name in ("lightweight", "complex"))
    assert without_values(light) == without_values(full)
    assert slice_of(light) == slice_of(full)


def test_a_share_first_device_fits_into_a_cascading_fleet() -> None:
    first, cascade = (
        slice_of(zoo.build("cifar10", "lightweight", way)) for way in ("share-first", "cascading")
    )
    assert first_difference(first, cascade) is None
    assert first_difference(cascade, first) == (
        "the device shares tensor 'light_output/kernel', which the fleet does not know."
    )


def test_bytes_are_the_same_every_time() -> None:
    branch = zoo.build("digits", "complex", "cascading")
    assert data_of(branch) == data_of(branch)


def small(
    *, scale: float = 1 / 255, name: str = "one", pool: bool = False, **changes: Any
) -> Branch:
    settings = {"kernel_size": 3, "padding": "same", "activation": "relu", **changes}
    stack = [layers.Conv2D(2, name=name, **settings)]
    if pool:
        stack.append(layers.MaxPooling2D(1, name="pool"))
    stack.append(layers.Conv2D(2, 1, name="two"))
    branch = branch_of(*stack, shared=(name, "two"), shape=(8, 8, 2))
    return Branch("small", branch.model, branch.shared_layers, input_scale=scale)


SAID: dict[str, tuple[dict[str, Any], str]] = {
    "stride": ({"strides": 2}, "'one/kernel' is used by Conv with pads"),
    "padding": ({"padding": "valid"}, "'one/kernel' is used by Conv with pads"),
    "dilation": ({"dilation_rate": 2}, "'one/kernel' is used by Conv with pads"),
    "activation": ({"activation": "elu"}, "'one/kernel' is followed by Add, Elu"),
    "kernel size": ({"kernel_size": 5}, "'one/kernel' has shape (5, 5, 2, 2)"),
    "input scale": ({"scale": 0.5}, "'one/kernel' is used by Conv, which something else feeds"),
    "name": ({"name": "first"}, "'first/kernel', which the fleet does not know"),
    "layer between": ({"pool": True}, "'two/kernel' is used by Conv, which something else feeds"),
}


@pytest.mark.parametrize("change", SAID)
def test_a_single_change_is_told_apart(change: str) -> None:
    changes, said = SAID[change]
    device, known = slice_of(small(**changes)), slice_of(small())
    assert device.fingerprint != known.fingerprint
    sentence = first_difference(device, known)
    assert sentence is not None
    assert said in sentence


def test_values_of_weights_and_statistics_do_not_count() -> None:
    branch = branch_of(
        layers.Conv2D(2, 3, name="local"),
        layers.BatchNormalization(name="norm"),
        layers.Conv2D(2, 1, name="last"),
        shared=("norm", "last"),
    )
    before = slice_of(branch), data_of(branch)
    for v in branch.model.variables:
        v.assign(v + 0.5)
    assert slice_of(branch) == before[0]
    assert data_of(branch) != before[1]
