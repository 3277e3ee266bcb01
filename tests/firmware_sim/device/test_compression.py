"""Error feedback: whatever was sent in all is what was learnt in all, but for one step."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from broker.protocol.quantisation import decode_tensors
from broker.protocol.slice import Tensors
from firmware_sim.device.compression import Compression
from firmware_sim.errors import Diverged
from firmware_sim.training.checkpoint import Residual

SHAPES = {"kernel": (25, 3), "bias": (3,), "gain": (), "none": (0, 2)}
lossy = pytest.mark.parametrize("encoding", ["float16", "int8", "int4"])


def compression(encoding: str, run: str = "run-1") -> tuple[Compression, Residual]:
    residual = Residual()
    made = Compression(encoding, residual)
    made.enter(run)
    return made, residual


def draw(seed: int, size: float = 1.0) -> Tensors:
    rng = np.random.default_rng(seed)
    return {n: (size * rng.normal(size=s)).astype(np.float32) for n, s in SHAPES.items()}


def frozen(tensors: Tensors) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in tensors.items()}


step = arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32))
SIZE = 65  # numbers


@pytest.mark.parametrize("encoding", ["int8", "int4"])
@settings(max_examples=60, deadline=None)
@given(learnt=st.lists(step, min_size=1, max_size=12))
def test_all_that_was_sent_is_all_that_was_learnt(
    encoding: str, learnt: list[npt.NDArray[np.float32]]
) -> None:
    made, _ = compression(encoding)
    total, received = np.zeros(SIZE), np.zeros(SIZE)
    for number, values in enumerate(learnt):
        x = np.resize(values, SIZE)
        sent = made.compress({"x": x}, device="pi-1", round=number, everything=True)
        received += decode_tensors(sent, encoding, {"x": (SIZE,)})["x"]
        total += x
        largest = np.abs(learnt).max()
        # e itself is kept in float32, and rounded to it once a round.
        (scale,) = (sent["*"][:2].view("<u2").astype("<u4") << 16).view("<f4")
        allowed = float(scale) * (1 + 1e-5) + 1e-6 * (number + 1) * largest
        assert np.abs(total - received).max() <= allowed


@lossy
def test_numbers_below_a_step_arrive_in_time(encoding: str) -> None:
    """One coordinate is a thousandth of another one; without feedback float16 would lose 1e-9."""
    tiny = 1e-9 if encoding == "float16" else 1e-3
    x = np.full(SIZE, tiny, np.float32)
    x[0] = 1.0
    made, _ = compression(encoding)
    received = np.zeros(SIZE)
    for number in range(400):
        sent = made.compress({"x": x}, device="pi-1", round=number, everything=True)
        received += decode_tensors(sent, encoding, {"x": (SIZE,)})["x"]
    step = {"float16": 6e-8, "int8": 1.01 / 127, "int4": 1.01 / 7}[encoding]
    assert received[0] == pytest.approx(400, abs=1.01 * step)
    np.testing.assert_allclose(received[1:], 400 * tiny, atol=1.5 * step)
    assert np.all(received[1:] > 0)


@lossy
def test_what_is_kept_is_what_was_not_sent(encoding: str) -> None:
    made, residual = compression(encoding)
    learnt = draw(1)
    sent = made.compress(learnt, device="pi-1", round=0, everything=True)
    back = decode_tensors(sent, encoding, SHAPES)
    assert residual.tensors.keys() == SHAPES.keys()
    for name in SHAPES:
        np.testing.assert_array_equal(residual.tensors[name], learnt[name] - back[name])
    assert np.abs(residual.tensors["kernel"]).max() > 0


def test_float32_sends_everything() -> None:
    made, residual = compression("float32")
    learnt = draw(1)
    assert frozen(made.compress(learnt, device="pi-1", round=0, everything=True)) == frozen(learnt)
    assert residual.tensors == {}


def test_what_int8_kept_goes_out_once_the_profile_says_float32() -> None:
    made, residual = compression("int8")
    made.compress(draw(1), device="pi-1", round=0, everything=True)
    kept, learnt = residual.tensors, draw(2)
    sent = Compression("float32", residual).compress(
        learnt, device="pi-1", round=1, everything=True
    )
    assert frozen(sent) == frozen({name: learnt[name] + kept[name] for name in SHAPES})
    assert residual.tensors == {}


@lossy
def test_the_same_device_and_round_give_the_same_bytes(encoding: str) -> None:
    def sent(device: str, round: int) -> dict[str, bytes]:
        return frozen(
            compression(encoding)[0].compress(draw(5), device=device, round=round, everything=True)
        )

    assert sent("pi-1", 3) == sent("pi-1", 3)
    if encoding != "float16":  # which needs no chance
        assert sent("pi-1", 3) != sent("pi-2", 3)
        assert sent("pi-1", 3) != sent("pi-1", 4)


def test_another_run_begins_without_a_residual() -> None:
    made, residual = compression("int8")
    made.compress(draw(1), device="pi-1", round=0, everything=True)
    kept = frozen(residual.tensors)
    made.enter("run-1")
    assert frozen(residual.tensors) == kept
    made.enter("run-2")
    assert (residual.run, residual.tensors) == ("run-2", {})


@lossy
def test_what_has_diverged_is_not_sent_and_not_kept(encoding: str) -> None:
    made, residual = compression(encoding)
    made.compress(draw(1), device="pi-1", round=0, everything=True)
    kept = frozen(residual.tensors)
    bad = draw(2) | {"bias": np.array([0, np.nan, 0], np.float32)}
    with pytest.raises(Diverged) as caught:
        made.compress(bad, device="pi-1", round=7, everything=True)
    assert str(caught.value) == (
        "in round 7 tensor 'bias' holds NaN, infinity, or numbers beyond all training; "
        "lower the learning rate."
    )
    assert frozen(residual.tensors) == kept
