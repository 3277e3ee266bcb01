"""The coordinator's optimisers: Keras's own steps, nothing drifts, slots can be stored."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from broker.errors import OptimizerRefused, StepRefused
from broker.merging.optimizers import SGD, Adam, Delta, Optimizer, parse_optimizer
from broker.protocol.slice import Tensors

ALL = [Delta(), SGD(0.1), Adam(0.001)]
SHAPES = {"kernel": (4, 3), "bias": (3,), "gain": ()}


def draw(rng: np.random.Generator) -> Tensors:
    return {n: np.asarray(rng.normal(size=shape), np.float32) for n, shape in SHAPES.items()}


def keras_sgd(keras: Any) -> Any:
    return keras.optimizers.SGD(0.1)


def keras_adam(keras: Any) -> Any:
    return keras.optimizers.Adam(0.001)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("sgd:0.1", keras_sgd), ("adam:0.001", keras_adam)], ids=["sgd", "adam"]
)
def test_ten_steps_are_keras(ours: str, theirs: Callable[[Any], Any]) -> None:
    import keras

    rng = np.random.default_rng(0)
    theta = draw(rng)
    variables = {name: keras.Variable(value, name=name) for name, value in theta.items()}
    counterpart = theirs(keras)
    counterpart.build(list(variables.values()))
    optimizer = parse_optimizer(ours)
    slots = optimizer.initial(theta)
    for step in range(10):
        gradient = {name: g * np.float32(10.0 ** (step - 5)) for name, g in draw(rng).items()}
        counterpart.apply(
            [keras.ops.convert_to_tensor(gradient[name], "float32") for name in variables]
        )
        theta, slots = optimizer.step(theta, as_arrays(gradient), slots)
        for name, variable in variables.items():
            expected = keras.ops.convert_to_numpy(variable.value)
            np.testing.assert_allclose(theta[name], expected, rtol=1e-6, atol=1e-6)


def as_arrays(tensors: Tensors) -> Tensors:
    """numpy turns a product of arrays without dimensions into a scalar."""
    return {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}


def test_a_delta_is_added() -> None:
    theta = {"w": np.asarray([1, 2], np.float32), "b": np.asarray([3], np.float32)}
    moved, slots = Delta().step(theta, {"w": np.asarray([0.5, -2], np.float32)}, {})
    np.testing.assert_array_equal(moved["w"], [1.5, 0])
    assert moved["b"] is theta["b"]
    assert slots == Delta().initial(theta) == {}


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_steps_are_pure_and_keep_shapes_and_types(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(1)
    theta, gradient = draw(rng), draw(rng)
    slots = optimizer.initial(theta)
    given = [array for part in (theta, gradient, slots) for array in part.values()]
    before = [array.copy() for array in given]
    for array in given:
        array.flags.writeable = False
    moved, new_slots = optimizer.step(theta, gradient, slots)
    for array, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert list(moved) == list(theta)
    assert list(new_slots) == list(slots)
    for name, value in moved.items():
        assert isinstance(value, np.ndarray)
        assert (value.dtype, value.shape) == (np.dtype(np.float32), SHAPES[name])
        assert not np.array_equal(value, theta[name])
        assert not np.shares_memory(value, theta[name])
    for name, value in new_slots.items():
        old = slots[name]
        assert (type(value), value.dtype, value.shape) == (np.ndarray, old.dtype, old.shape)


def test_a_tensor_that_nobody_sent_does_not_drift() -> None:
    """Three steps of which the bias sees the first and last: the same as two steps alone."""
    rng = np.random.default_rng(2)
    theta = {"kernel": draw(rng)["kernel"], "bias": draw(rng)["bias"]}
    gradients = [{n: draw(rng)[n] for n in theta} for _ in range(3)]
    optimizer = Adam(0.01)
    alone, alone_slots = {"bias": theta["bias"]}, optimizer.initial({"bias": theta["bias"]})
    for step in (0, 2):
        alone, alone_slots = optimizer.step(alone, {"bias": gradients[step]["bias"]}, alone_slots)
    slots = optimizer.initial(theta)
    for step in range(3):
        sent = {n: g for n, g in gradients[step].items() if n == "kernel" or step != 1}
        held = theta["bias"]
        theta, slots = optimizer.step(theta, sent, slots)
        assert (theta["bias"] is held) == (step == 1)
    np.testing.assert_array_equal(theta["bias"], alone["bias"])
    assert {name: slots[f"{name}/t"].tolist() for name in theta} == {"kernel": [3], "bias": [2]}
    np.testing.assert_array_equal(slots["bias/v"], alone_slots["bias/v"])


def test_a_stored_state_goes_on_exactly() -> None:
    rng = np.random.default_rng(3)
    optimizer = Adam(0.01)
    theta = draw(rng)
    slots = optimizer.initial(theta)
    assert sorted(slots) == sorted(f"{name}/{slot}" for name in theta for slot in "mvt")
    for _ in range(4):
        theta, slots = optimizer.step(theta, draw(rng), slots)
    stored_theta, stored_slots = load(save(theta)), load(save(slots))
    gradient = draw(rng)
    straight, straight_slots = optimizer.step(theta, gradient, slots)
    restored, restored_slots = optimizer.step(stored_theta, gradient, stored_slots)
    for ours, theirs in ((straight, restored), (straight_slots, restored_slots)):
        assert sorted(ours) == sorted(theirs)
        for name in ours:
            assert ours[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(ours[name], theirs[name])
    forgotten, _ = optimizer.step(theta, gradient, optimizer.initial(theta))
    assert not np.allclose(forgotten["kernel"], straight["kernel"], atol=1e-4)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_a_step_that_would_be_infinite_is_refused(optimizer: Optimizer) -> None:
    theta = {"v": np.zeros(1, np.float32), "w": np.full(2, -3e38, np.float32)}
    sent = {"v": np.ones(1, np.float32), "w": np.asarray([1, -np.inf], np.float32)}
    sentence = "the merged update would make tensor 'w' infinite: set clip_norm, "
    with pytest.raises(StepRefused, match=sentence):
        optimizer.step(theta, sent, optimizer.initial(theta))


def test_adam_refuses_gradients_whose_squares_overflow() -> None:
    """θ would stay finite, but the tensor could never move again."""
    theta = {"w": np.zeros(1, np.float32)}
    with pytest.raises(StepRefused, match="'w' infinite"):
        Adam(0.1).step(theta, {"w": np.full(1, 1e30, np.float32)}, Adam(0.1).initial(theta))
    moved, _ = Adam(0.1).step(theta, {"w": np.full(1, 1e18, np.float32)}, Adam(0.1).initial(theta))
    np.testing.assert_allclose(moved["w"], [-0.1], rtol=1e-5)


@pytest.mark.parametrize("sent", [{"x": (2,)}, {"w": (1,)}], ids=["unknown", "shape"])
def test_a_tensor_that_theta_does_not_have_is_refused(sent: dict[str, tuple[int, ...]]) -> None:
    theta = {"w": np.zeros(2, np.float32)}
    [(name, shape)] = sent.items()
    with pytest.raises(StepRefused, match=f"no tensor '{name}' of shape"):
        SGD(0.1).step(theta, {name: np.ones(shape, np.float32)}, {})


def test_settings_are_parsed() -> None:
    assert parse_optimizer("sgd:0.01") == SGD(0.01)
    assert parse_optimizer("adam:1e-3") == Adam(0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7)


NOT_UNDERSTOOD = "sgd sgd: sgd:fast rmsprop:0.1 adam:0 adam:-1 adam:nan sgd:inf sgd:0.1:0.9 0.1"


@pytest.mark.parametrize("text", ["", *NOT_UNDERSTOOD.split()])
def test_settings_that_are_not_understood_are_refused(text: str) -> None:
    sentence = f"optimizer '{text}' is not understood: write sgd:RATE or adam:RATE with a rate "
    with pytest.raises(OptimizerRefused, match=f"^{sentence}above 0, as in adam:0.001.$"):
        parse_optimizer(text)
