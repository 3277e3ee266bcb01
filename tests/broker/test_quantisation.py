"""Quantised tensors: how far they may be off, that they are right on average, and their bytes."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.messages import Update, to_bytes
from broker.quantisation import (
    ENCODINGS,
    SMALLEST_SCALE,
    NotQuantisable,
    are_codes,
    are_scales,
    decode_tensors,
    encode_tensors,
    layout,
    to_half,
    widened,
)
from broker.slice import Tensors

LEVELS = {"int8": 127, "int4": 7}
SLACK = 1 + 1e-5  # x / s is rounded to float32
ATARI_STEM = {
    "stem_conv1/kernel": (8, 8, 4, 32),
    "stem_conv1/bias": (32,),
    "stem_conv2/kernel": (4, 4, 32, 64),
    "stem_conv2/bias": (64,),
}
CIFAR_LIGHTWEIGHT = {  # cascading: the whole branch
    "stem_conv1/kernel": (3, 3, 3, 32),
    "stem_conv1/bias": (32,),
    "stem_conv2/kernel": (3, 3, 32, 32),
    "stem_conv2/bias": (32,),
    "light_output/kernel": (1568, 10),
    "light_output/bias": (10,),
}
quantised = pytest.mark.parametrize("encoding", ["int8", "int4"])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def there_and_back(
    x: npt.NDArray[np.float32], encoding: str, seed: int = 0
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.float32]]:
    sent = encode_tensors({"x": x}, encoding, rng(seed))
    return sent, decode_tensors(sent, encoding, {"x": x.shape})["x"]


def assert_described(sent: dict[str, npt.NDArray[Any]], shape: tuple[int, ...], how: str) -> None:
    """What travels is what the layout promises and what a receiver takes."""
    expected = layout(shape, how)
    assert (sent["x"].dtype, sent["x"].shape) == (expected.dtype, expected.shape)
    assert sum(array.nbytes for array in sent.values()) <= 4 * math.prod(shape)
    assert are_codes(sent["x"], math.prod(shape))
    assert ("scale:x" in sent) == (expected.scales is not None)
    if expected.scales is not None:
        assert (sent["scale:x"].dtype, sent["scale:x"].shape) == (np.float32, expected.scales)
        assert are_scales(sent["scale:x"])


numbers = st.floats(-(2.0**39), 2.0**39, width=32, allow_subnormal=True)
shapes = st.sampled_from([(65,), (66,), (5, 13), (7, 10), (3, 3, 5, 2), (401, 1), (801, 2)])


@quantised
@settings(max_examples=150, deadline=None)
@given(values=st.lists(numbers, min_size=1, max_size=9), shape=shapes, seed=st.integers(0, 2**32))
def test_nothing_is_off_by_more_than_a_step(
    encoding: str, values: list[float], shape: tuple[int, ...], seed: int
) -> None:
    x = np.resize(np.array(values, np.float32), shape)
    sent, back = there_and_back(x, encoding, seed)
    assert_described(sent, shape, encoding)
    assert (back.dtype, back.shape) == (np.float32, shape)
    s = sent["scale:x"]
    assert np.all(np.abs(x.astype(np.float64) - back) <= s.astype(np.float64) * SLACK)
    assert np.all(back[x == 0] == 0)
    largest = np.abs(x).max(axis=tuple(range(x.ndim - 1)) if s.ndim else None)
    wanted = np.maximum(largest.astype(np.float64) / LEVELS[encoding], SMALLEST_SCALE)
    np.testing.assert_allclose(s, wanted, rtol=1e-6)


@quantised
@pytest.mark.parametrize(
    "values",
    [[0.0], [1e-45, -1e-45, 0.0], [1e-38, 3e-39, -1e-45], [1e12, 1e-30, -1e-45], [-1e12]],
    ids=str,
)
def test_extremes(encoding: str, values: list[float]) -> None:
    x = np.resize(np.array(values, np.float32), 67)
    sent, back = there_and_back(x, encoding)
    assert_described(sent, x.shape, encoding)
    assert np.all(np.isfinite(back))
    assert np.all(np.abs(x - back) <= sent["scale:x"] * SLACK)
    assert np.any(x) or sent["scale:x"] == np.float32(SMALLEST_SCALE)


@quantised
@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (1,), (8, 8), (64,)], ids=str)
def test_small_tensors_travel_as_float16(encoding: str, shape: tuple[int, ...]) -> None:
    x = np.full(shape, 1 / 3, np.float32)
    sent, back = there_and_back(x, encoding)
    assert list(sent) == ["x"] and sent["x"].dtype == np.float16
    assert_described(sent, shape, encoding)
    assert (back.dtype, back.shape) == (np.float32, shape)
    assert np.all(back == np.float32(np.float16(1 / 3)))


@quantised
def test_rounding_is_unbiased(encoding: str) -> None:
    """The mean of 4,000 roundings is within 5 standard errors, and rounding did happen."""
    x = np.linspace(-1, 1, 41, dtype=np.float32)
    count = 4000
    sent, back = there_and_back(np.tile(x, count), encoding)
    s = 1 / LEVELS[encoding]
    assert sent["scale:x"] == pytest.approx(s)
    rounded = back.reshape(count, 41)
    # The variance of one rounding is s² p (1 - p), at most s² / 4.
    error = rounded.mean(axis=0, dtype=np.float64) - x
    assert np.abs(error).max() < 5 * s / 2 / math.sqrt(count)
    assert np.abs(rounded - x).max() > 0.5 * s


@quantised
def test_multiples_of_the_scale_are_exact(encoding: str) -> None:
    most = LEVELS[encoding]
    x = np.resize(np.arange(-most, most + 1).astype(np.float32) * 0.25, 301)
    _, back = there_and_back(x, encoding)
    np.testing.assert_array_equal(back, x)


def test_int4_codes_are_packed_from_the_lower_half() -> None:
    x = np.zeros(65, np.float32)
    x[:5] = x[60:] = [7, -7, 1, -1, 2]
    sent = encode_tensors({"x": x}, "int4", rng())
    assert sent["x"].tobytes() == bytes([0x97, 0xF1, 0x02, *[0] * 27, 0x97, 0xF1, 0x02])
    assert sent["scale:x"] == 1.0
    np.testing.assert_array_equal(decode_tensors(sent, "int4", {"x": (65,)})["x"], x)


@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ((4, 4, 32, 64), (64,)),
        ((8, 8, 4, 32), ()),  # 256 numbers in a channel
        ((399, 3), ()),
        ((400, 3), (3,)),
        ((100_000,), ()),  # without channels
        ((65,), ()),
        ((64,), None),
        ((), None),
        ((0, 4), None),
        ((500, 0), None),
    ],
)
def test_channels_have_scales_where_these_cost_little(
    shape: tuple[int, ...], scales: tuple[int, ...] | None
) -> None:
    assert layout(shape, "int8").scales == layout(shape, "int4").scales == scales
    assert layout(shape, "float32").scales is layout(shape, "float16").scales is None


@quantised
def test_a_small_channel_keeps_its_detail_beside_a_large_one(encoding: str) -> None:
    x = rng(1).uniform(-1, 1, (1000, 2)).astype(np.float32)
    x[:, 0] *= 1e-6
    sent, back = there_and_back(x, encoding)
    assert sent["scale:x"].shape == (2,)
    assert np.abs(x - back)[:, 0].max() <= 1e-6 / LEVELS[encoding] * SLACK


def test_float16_is_the_nearest_and_never_infinite() -> None:
    x = np.array([1 / 3, 1e-9, 65504, 65519, 1e10, -1e12], np.float32)
    sent, back = there_and_back(x, "float16")
    assert_described(sent, x.shape, "float16")
    np.testing.assert_array_equal(
        back, np.array([np.float16(1 / 3), 0, 65504, 65504, 65504, -65504], np.float32)
    )


def test_float32_is_what_it_was() -> None:
    x = np.array([np.nan, np.inf, 1 / 3, 1e-45], np.float32)
    sent, back = there_and_back(x, "float32")
    assert sent["x"] is x and back is x


@pytest.mark.parametrize("encoding", ["float16", "int8", "int4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e12])
def test_what_no_code_stands_for(encoding: str, value: float) -> None:
    with pytest.raises(NotQuantisable) as caught:
        encode_tensors({"stem/bias": np.array([0, value], np.float32)}, encoding, rng())
    assert str(caught.value) == (
        "tensor 'stem/bias' holds NaN, infinity, or numbers beyond all training."
    )


@quantised
def test_the_same_seed_gives_the_same_bytes(encoding: str) -> None:
    x = rng(3).normal(size=(50, 7)).astype(np.float32)
    one, same, other = (there_and_back(x, encoding, seed)[0]["x"] for seed in (1, 1, 2))
    assert one.tobytes() == same.tobytes() != other.tobytes()


def test_theta_is_widened_exactly_and_nothing_else_is_touched() -> None:
    x = np.array([1 / 3, -2.0], np.float32)
    double = np.zeros(2)
    wide = widened({"half": to_half(x), "single": x, "double": double})
    assert wide["half"].dtype == np.float32
    np.testing.assert_array_equal(wide["half"], np.float16([1 / 3, -2.0]).astype(np.float32))
    assert wide["single"] is x and wide["double"] is double


@pytest.mark.parametrize("shapes", [ATARI_STEM, CIFAR_LIGHTWEIGHT], ids=["Atari", "CIFAR-10"])
def test_bytes_of_a_whole_message(shapes: dict[str, tuple[int, ...]]) -> None:
    draw = rng(4)
    tensors: Tensors = {n: draw.normal(size=s).astype(np.float32) for n, s in shapes.items()}

    def size(encoding: str) -> int:
        sent = encode_tensors(tensors, encoding, rng())
        update = Update(
            device="raspberry-pi-zero-2-in-the-greenhouse",
            run="0123456789abcdef",
            round=1000,
            nonce="0" * 32,
            samples=10_000,
            exchange="gradient",
            fingerprint="f" * 64,
            encoding=encoding,
            tensors=sent,
        )
        return len(to_bytes(update))

    sizes = {encoding: size(encoding) for encoding in ENCODINGS}
    whole = sizes["float32"]
    assert whole > 4 * sum(math.prod(shape) for shape in shapes.values())
    assert sizes["float16"] <= 0.51 * whole
    assert sizes["int8"] <= 0.26 * whole
    assert sizes["int4"] <= 0.14 * whole
