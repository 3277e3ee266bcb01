"""The coordinator's optimisers: Keras's own steps, nothing drifts, slots can be stored."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from broker.errors import OptimizerRefused, StepRefused
from broker.merging.optimizers import (
    SGD,
    Adam,
    Delta,
    Momentum,
    Optimizer,
    PseudoGradient,
    parse_optimizer,
)
from broker.protocol.slice import Tensors

OF_DELTAS = [PseudoGradient(Momentum(0.5, 1.0)), PseudoGradient(Adam(0.01, epsilon=1e-3))]
ALL: list[Optimizer] = [Delta(), SGD(0.1), Momentum(0.9, 0.1), Adam(0.001), *OF_DELTAS]
SHAPES = {"kernel": (4, 3), "bias": (3,), "gain": ()}


def draw(rng: np.random.Generator) -> Tensors:
    return {n: np.asarray(rng.normal(size=shape), np.float32) for n, shape in SHAPES.items()}


# What the aggregator is told, and Keras' optimiser that does the same.
COUNTERPARTS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("gradient", "sgd:0.1"): lambda keras: keras.optimizers.SGD(0.1),
    ("gradient", "momentum:0.9"): lambda keras: keras.optimizers.SGD(0.01, momentum=0.9),
    ("gradient", "momentum:0.5:0.1"): lambda keras: keras.optimizers.SGD(0.1, momentum=0.5),
    ("gradient", "adam:0.001"): lambda keras: keras.optimizers.Adam(0.001),
    ("gradient", "adam:0.01:0.1"): lambda keras: keras.optimizers.Adam(0.01, epsilon=0.1),
    ("delta", "sgd:0.5"): lambda keras: keras.optimizers.SGD(0.5),
    ("delta", "momentum:0.9"): lambda keras: keras.optimizers.SGD(1.0, momentum=0.9),
    ("delta", "momentum:0.5:2"): lambda keras: keras.optimizers.SGD(2.0, momentum=0.5),
    ("delta", "adam:0.01"): lambda keras: keras.optimizers.Adam(0.01, beta_2=0.99, epsilon=1e-3),
    ("delta", "adam:0.01:1e-5"): lambda keras: keras.optimizers.Adam(
        0.01, beta_2=0.99, epsilon=1e-5
    ),
}


@pytest.mark.parametrize(
    ("exchange", "ours", "theirs"),
    [(*told, theirs) for told, theirs in COUNTERPARTS.items()],
    ids=[f"{ours} of {exchange}s" for exchange, ours in COUNTERPARTS],
)
def test_ten_steps_are_keras(exchange: str, ours: str, theirs: Callable[[Any], Any]) -> None:
    import keras

    rng = np.random.default_rng(0)
    theta = draw(rng)
    variables = {name: keras.Variable(value, name=name) for name, value in theta.items()}
    counterpart = theirs(keras)
    counterpart.build(list(variables.values()))
    optimizer = parse_optimizer(ours, exchange)
    slots = optimizer.initial(theta)
    sign = -1 if exchange == "delta" else 1
    for step in range(10):
        gradient = {name: g * np.float32(10.0 ** (step - 5)) for name, g in draw(rng).items()}
        counterpart.apply(
            [keras.ops.convert_to_tensor(gradient[name], "float32") for name in variables]
        )
        sent = as_arrays({name: sign * g for name, g in gradient.items()})
        theta, slots = optimizer.step(theta, sent, slots)
        for name, variable in variables.items():
            expected = keras.ops.convert_to_numpy(variable.value)
            np.testing.assert_allclose(theta[name], expected, rtol=2e-6, atol=1e-6)


def as_arrays(tensors: Tensors) -> Tensors:
    """numpy turns a product of arrays without dimensions into a scalar."""
    return {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}


def test_a_delta_is_added() -> None:
    theta = {"w": np.asarray([1, 2], np.float32), "b": np.asarray([3], np.float32)}
    moved, slots = Delta().step(theta, {"w": np.asarray([0.5, -2], np.float32)}, {})
    np.testing.assert_array_equal(moved["w"], [1.5, 0])
    assert moved["b"] is theta["b"]
    assert slots == Delta().initial(theta) == {}


def test_momentum_of_deltas_by_hand() -> None:
    """v ← v/2 + Δ;  θ ← θ + v: deltas that agree move θ up to twice as far, and it swings on."""
    optimizer = parse_optimizer("momentum:0.5", "delta")
    theta: Tensors = {"w": np.full(1, 1, np.float32)}
    slots = optimizer.initial(theta)
    seen = []
    for delta in (1, 1, 1, 0, -1):
        theta, slots = optimizer.step(theta, {"w": np.full(1, delta, np.float32)}, slots)
        seen.append(float(theta["w"][0]))
    assert seen == [2, 3.5, 5.25, 6.125, 5.5625]  # v = 1, 1.5, 1.75, 0.875, -0.5625


def test_fed_adam_against_reddi_and_others() -> None:
    """Their algorithm 2, with Adam's correction of the first steps, in float64."""
    rng = np.random.default_rng(4)
    eta, beta_1, beta_2, tau = 0.05, 0.9, 0.99, 1e-3
    optimizer = parse_optimizer("adam:0.05", "delta")
    theta = draw(rng)
    slots = optimizer.initial(theta)
    x = {name: value.astype(np.float64) for name, value in theta.items()}
    m, v = ({name: np.zeros_like(value) for name, value in x.items()} for _ in range(2))
    for t in range(1, 21):
        delta = as_arrays({name: 0.01 * d for name, d in draw(rng).items()})
        theta, slots = optimizer.step(theta, delta, slots)
        for name, change in delta.items():
            wide = change.astype(np.float64)
            m[name] = beta_1 * m[name] + (1 - beta_1) * wide
            v[name] = beta_2 * v[name] + (1 - beta_2) * wide**2
            rate = eta * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
            x[name] = x[name] + rate * m[name] / (np.sqrt(v[name]) + tau)
            np.testing.assert_allclose(theta[name], x[name], rtol=1e-5, atol=1e-6)


def test_epsilon_decides_what_adam_does_with_small_deltas() -> None:
    """Deltas far above ε move θ by the rate, whatever their size; far below, in proportion."""
    theta: Tensors = {"w": np.zeros(2, np.float32)}
    delta: Tensors = {"w": np.asarray([1e-4, 1e-5], np.float32)}

    def moved(text: str) -> np.ndarray[Any, Any]:
        optimizer = parse_optimizer(text, "delta")
        return optimizer.step(theta, delta, optimizer.initial(theta))[0]["w"]

    np.testing.assert_allclose(moved("adam:0.01:1e-9"), [0.01, 0.01], rtol=2e-3)
    large, small = moved("adam:0.01:1")
    assert large / small == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("text", ["sgd:1", "momentum:0"])
def test_a_rate_of_one_without_memory_adds_deltas_to_the_last_bit(text: str) -> None:
    rng = np.random.default_rng(5)
    theta, delta = draw(rng), draw(rng)
    optimizer = parse_optimizer(text, "delta")
    moved, _ = optimizer.step(theta, delta, optimizer.initial(theta))
    added, _ = parse_optimizer(None, "delta").step(theta, delta, {})
    assert {n: a.tobytes() for n, a in moved.items()} == {n: a.tobytes() for n, a in added.items()}


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


@pytest.mark.parametrize("optimizer", [Adam(0.01), *OF_DELTAS], ids=repr)
def test_a_tensor_that_nobody_sent_does_not_drift(optimizer: Optimizer) -> None:
    """Three steps of which the bias sees the first and last: the same as two steps alone."""
    rng = np.random.default_rng(2)
    theta = {"kernel": draw(rng)["kernel"], "bias": draw(rng)["bias"]}
    gradients = [{n: draw(rng)[n] for n in theta} for _ in range(3)]
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
    if "bias/t" in slots:
        assert (slots["kernel/t"].tolist(), slots["bias/t"].tolist()) == ([3], [2])
    np.testing.assert_array_equal(slots["bias/v"], alone_slots["bias/v"])


@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [(Adam(0.01), "mvt"), (Momentum(0.9, 0.1), "v"), *zip(OF_DELTAS, ("v", "mvt"), strict=True)],
    ids=repr,
)
def test_a_stored_state_goes_on_exactly(optimizer: Optimizer, kept: str) -> None:
    rng = np.random.default_rng(3)
    theta = draw(rng)
    slots = optimizer.initial(theta)
    assert sorted(slots) == sorted(f"{name}/{slot}" for name in theta for slot in kept)
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
    assert parse_optimizer(None, "gradient") == SGD(0.01)
    assert parse_optimizer("sgd:0.01", "gradient") == SGD(0.01)
    assert parse_optimizer("momentum:0.9", "gradient") == Momentum(0.9, 0.01)
    keras = Adam(0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7)
    assert parse_optimizer("adam:1e-3", "gradient") == keras
    assert parse_optimizer(None, "delta") == Delta()
    assert parse_optimizer("sgd:2", "delta") == PseudoGradient(SGD(2.0))
    assert parse_optimizer("momentum:0.5", "delta") == PseudoGradient(Momentum(0.5, 1.0))
    reddi = Adam(0.1, beta_1=0.9, beta_2=0.99, epsilon=1e-3)
    assert parse_optimizer("adam:0.1", "delta") == PseudoGradient(reddi)


def test_the_kind_says_whose_slots_they_are() -> None:
    """What stands in the states of earlier versions stays the same."""
    assert [o.kind for o in ALL] == ["Delta", "SGD", "Momentum", "Adam", "Momentum", "Adam"]


NOT_UNDERSTOOD = (
    "sgd sgd: sgd:fast rmsprop:0.1 adam:0 adam:-1 adam:nan sgd:inf sgd:0.1:0.9 0.1 momentum "
    "momentum:1 momentum:-0.1 momentum:nan momentum:0.5:0 momentum:0.5:1:1 momentum:0.5:x "
    "adam:0.1:0 adam:0.1:1e-3:1 adam:0.1:"
)


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
@pytest.mark.parametrize("text", ["", *NOT_UNDERSTOOD.split()])
def test_settings_that_are_not_understood_are_refused(text: str, exchange: str) -> None:
    with pytest.raises(OptimizerRefused) as caught:
        parse_optimizer(text, exchange)
    assert str(caught.value) == (
        f"optimizer {text!r} is not understood: write sgd:RATE, momentum:BETA[:RATE] or "
        "adam:RATE[:EPSILON] with 0 ≤ BETA < 1 and the others above 0, as in momentum:0.5."
    )
