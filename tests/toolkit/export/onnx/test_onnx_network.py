"""The whole network as ONNX computes what Keras does, from what a device takes."""

import keras
import numpy as np
import onnxruntime
import pytest
from keras import layers
from onnx import numpy_helper

from toolkit import zoo
from toolkit.branch.branch import Branch
from toolkit.export.onnx.network import build_network


def randomised(branch: Branch) -> Branch:
    """Fresh biases and moving statistics are zeros and ones, which hide mistakes."""
    rng = np.random.default_rng(3)
    for v in branch.model.variables:
        if v.dtype == "float32":
            v.assign(rng.uniform(0.1, 0.6, v.shape).astype(np.float32) * 0.2)
    return branch


def assert_same_output(branch: Branch) -> None:
    rng = np.random.default_rng(7)
    shape = (1, *branch.input_shape)
    if branch.input_dtype == "uint8":
        x = rng.integers(0, 256, shape).astype(np.uint8)
    else:
        x = rng.standard_normal(shape).astype(np.float32)
    model = build_network(branch)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert stored.keys() == branch.weights().keys()
    for name, value in branch.weights().items():
        np.testing.assert_array_equal(stored[name], value)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(["output"], {"x": x})
    wanted = np.asarray(branch.model(x.astype(np.float32) * np.float32(branch.input_scale)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * max(1, abs(wanted).max()))


@pytest.mark.parametrize(
    ("task", "name", "topology"),
    [names for names in zoo.names() if names[0] in ("digits", "cartpole", "minatar")],
)
def test_zoo_networks_compute_what_keras_does(task: str, name: str, topology: str) -> None:
    assert_same_output(randomised(zoo.build(task, name, topology)))


def test_a_network_with_normalisation_and_a_nested_model() -> None:
    inner = keras.Sequential(
        [
            keras.Input((9, 11, 3)),
            layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3, activation="gelu"),
        ]
    )
    x = keras.Input((9, 11, 3))
    y = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(inner(x)))
    y = layers.Dense(3, activation="softmax", name="head")(y)
    assert_same_output(randomised(Branch("nested", keras.Model(x, y), ("head",))))
