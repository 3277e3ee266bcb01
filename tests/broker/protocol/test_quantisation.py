"""Quantised tensors: how far they may be off, that they are right on average, and their bytes."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import NotQuantisable
from broker.protocol.messages import Update, to_bytes
from broker.protocol.quantisation import (
    ENCODINGS,
    SMALLEST_SCALE,
    bad_code,
    bad_scale,
    decode_tensors,
    encode_tensors,
    packed_bytes,
    places,
    to_half,
    widened,
)
from broker.protocol.slice import Tensors

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
DIGITS_LIGHTWEIGHT = {
    "stem_conv1/kernel": (3, 3, 1, 16),
    "stem_conv1/bias": (16,),
    "stem_conv2/kernel": (3, 3, 16, 16),
    "stem_conv2/bias": (16,),
    "light_output/kernel": (144, 10),
    "light_output/bias": (10,),
}
quantised = pytest.mark.parametrize("encoding", ["int8", "int4"])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def there_and_back(
    x: npt.NDArray[np.float32], encoding: str, seed: int = 0
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """What travels for one tensor, and what arrives."""
    sent = encode_tensors({"x": x}, encoding, rng(seed), everything=True)
    (travels,) = sent.values()
    return travels, decode_tensors(sent, encoding, {"x": x.shape})["x"]


def scales(packed: npt.NDArray[Any], shape: tuple[int, ...], encoding: str) -> npt.NDArray[Any]:
    """Read as the documentation says: each is the upper half of a float32."""
    (place,) = places({"x": shape}, encoding)
    return (packed[place.scales].view("<u2").astype("<u4") << 16).view("<f4")


def assert_taken(packed: npt.NDArray[Any], shape: tuple[int, ...], encoding: str) -> None:
    """What travels is what a receiver takes."""
    assert packed.dtype == np.uint8
    assert packed.shape == (packed_bytes({"x": shape}, encoding),)
    assert bad_scale(packed, {"x": shape}, encoding) is None
    assert bad_code(packed, {"x": shape}, encoding) is None


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
    assert_taken(sent, shape, encoding)
    assert (back.dtype, back.shape) == (np.dtype(np.float32), shape)
    s = scales(sent, shape, encoding).astype(np.float64)
    assert np.all(np.abs(x.astype(np.float64) - back) <= s * SLACK)
    assert np.all(back[x == 0] == 0)
    largest = np.abs(x.reshape(-1, len(s))).max(axis=0).astype(np.float64)
    wanted = np.maximum(largest / LEVELS[encoding], SMALLEST_SCALE)
    assert np.all(s * SLACK >= wanted), "no code is beyond ±L"
    np.testing.assert_allclose(s, wanted, rtol=2**-7)


@quantised
@pytest.mark.parametrize(
    "values",
    [[0.0], [1e-45, -1e-45, 0.0], [1e-38, 3e-39, -1e-45], [1e12, 1e-30, -1e-45], [-1e12]],
    ids=str,
)
def test_extremes(encoding: str, values: list[float]) -> None:
    x = np.resize(np.array(values, np.float32), 67)
    sent, back = there_and_back(x, encoding)
    assert_taken(sent, x.shape, encoding)
    assert np.all(np.isfinite(back))
    (s,) = scales(sent, x.shape, encoding)
    assert np.all(np.abs(x - back) <= s * SLACK)
    assert np.any(x) or s == np.float32(SMALLEST_SCALE)


@quantised
@pytest.mark.parametrize("shape", [(), (1,), (3,), (8, 8), (64,)], ids=str)
def test_a_small_tensor_has_a_scale_too(encoding: str, shape: tuple[int, ...]) -> None:
    x = np.full(shape, 1 / 3, np.float32)
    sent, back = there_and_back(x, encoding)
    assert_taken(sent, shape, encoding)
    np.testing.assert_allclose(back, x, atol=1 / 3 / LEVELS[encoding])


@quantised
@pytest.mark.parametrize("shape", [(0,), (0, 4), (500, 0)], ids=str)
def test_without_numbers_there_is_a_scale_and_nothing_else(
    encoding: str, shape: tuple[int, ...]
) -> None:
    sent, back = there_and_back(np.zeros(shape, np.float32), encoding)
    assert_taken(sent, shape, encoding)
    assert (len(sent), back.shape, back.dtype) == (2, shape, np.dtype(np.float32))


@quantised
def test_rounding_is_unbiased(encoding: str) -> None:
    """The mean of 4,000 roundings is within 5 standard errors, and rounding did happen."""
    x = np.linspace(-1, 1, 41, dtype=np.float32)
    count = 4000
    sent, back = there_and_back(np.tile(x, count), encoding)
    (s,) = scales(sent, (41 * count,), encoding)
    assert s == pytest.approx(1 / LEVELS[encoding], rel=2**-7)
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


def test_the_bytes_are_those_of_the_documentation() -> None:
    """Scales before codes, tensors by name; int4 from the lower half, each from a new byte."""
    tensors: Tensors = {
        "b": np.array([7, -7, 1, -1, 2], np.float32),
        "a": np.array([[-3.5, 0.5]], np.float32),
    }
    shapes = {name: x.shape for name, x in tensors.items()}
    one, half = b"\x80\x3f", b"\x00\x3f"
    (sent,) = encode_tensors(tensors, "int4", rng(), everything=True).values()
    assert sent.tobytes() == half + one + bytes([0x19, 0x97, 0xF1, 0x02])
    back = decode_tensors({"*": sent}, "int4", shapes)
    for name, x in tensors.items():
        np.testing.assert_array_equal(back[name], x)
    whole = {name: x * np.float32(127 / np.abs(x).max()) for name, x in tensors.items()}
    (sent,) = encode_tensors(whole, "int8", rng(), everything=True).values()
    assert sent[:6].tobytes() == one + one + bytes([0x81, 0x12])  # -127, 18.14…
    assert sent[6] == 127 and sent[7] == 0x81 and len(sent) == 4 + 2 + 5


def test_the_name_says_which_tensors_there_are() -> None:
    tensors: Tensors = {"b": np.zeros(2, np.float32), "a": np.zeros(3, np.float32)}
    assert [*encode_tensors(tensors, "int8", rng(), everything=True)] == ["*"]
    assert [*encode_tensors(tensors, "int8", rng(), everything=False)] == ["a\nb"]
    assert [*encode_tensors(tensors, "float16", rng(), everything=True)] == ["b", "a"]


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((4, 4, 32, 64), 64),
        ((8, 8, 4, 32), 32),  # 256 numbers in a channel
        ((3, 3, 16, 16), 1),
        ((199, 3), 1),
        ((200, 3), 3),
        ((100_000,), 1),  # without channels
        ((), 1),
        ((0, 4), 1),
        ((500, 0), 1),
    ],
)
def test_channels_have_scales_where_these_cost_little(shape: tuple[int, ...], count: int) -> None:
    size = math.prod(shape)
    assert packed_bytes({"x": shape}, "int8") == 2 * count + size
    assert packed_bytes({"x": shape}, "int4") == 2 * count + (size + 1) // 2


@quantised
def test_a_small_channel_keeps_its_detail_beside_a_large_one(encoding: str) -> None:
    x = rng(1).uniform(-1, 1, (1000, 2)).astype(np.float32)
    x[:, 0] *= 1e-6
    sent, back = there_and_back(x, encoding)
    assert len(scales(sent, x.shape, encoding)) == 2
    assert np.abs(x - back)[:, 0].max() <= 1e-6 / LEVELS[encoding] * (1 + 2**-7)


def test_float16_is_the_nearest_and_never_infinite() -> None:
    x = np.array([1 / 3, 1e-9, 65504, 65519, 1e10, -1e12], np.float32)
    sent, back = there_and_back(x, "float16")
    assert sent.dtype == np.float16
    np.testing.assert_array_equal(
        back, np.array([np.float16(1 / 3), 0, 65504, 65504, 65504, -65504], np.float32)
    )


def test_float32_is_what_it_was() -> None:
    x = np.array([np.nan, np.inf, 1 / 3, 1e-45], np.float32)
    sent, back = there_and_back(x, "float32")
    assert sent is x and back is x


@pytest.mark.parametrize("encoding", ["float16", "int8", "int4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e12])
def test_what_no_code_stands_for(encoding: str, value: float) -> None:
    with pytest.raises(NotQuantisable) as caught:
        bad = {"stem/bias": np.array([0, value], np.float32)}
        encode_tensors(bad, encoding, rng(), everything=True)
    assert str(caught.value) == (
        "tensor 'stem/bias' holds NaN, infinity, or numbers beyond all training."
    )


@quantised
def test_the_same_seed_gives_the_same_bytes(encoding: str) -> None:
    x = rng(3).normal(size=(50, 7)).astype(np.float32)
    one, same, other = (there_and_back(x, encoding, seed)[0] for seed in (1, 1, 2))
    assert one.tobytes() == same.tobytes() != other.tobytes()


def test_theta_is_widened_exactly_and_nothing_else_is_touched() -> None:
    x = np.array([1 / 3, -2.0], np.float32)
    double = np.zeros(2)
    wide = widened({"half": to_half(x), "single": x, "double": double})
    assert wide["half"].dtype == np.float32
    np.testing.assert_array_equal(
        wide["half"], np.array([1 / 3, -2.0], np.float16).astype(np.float32)
    )
    assert wide["single"] is x and wide["double"] is double


@pytest.mark.parametrize(
    "shapes",
    [ATARI_STEM, CIFAR_LIGHTWEIGHT, DIGITS_LIGHTWEIGHT],
    ids=["Atari", "CIFAR-10", "digits"],
)
def test_bytes_of_a_whole_message(shapes: dict[str, tuple[int, ...]]) -> None:
    draw = rng(4)
    tensors: Tensors = {n: draw.normal(size=s).astype(np.float32) for n, s in shapes.items()}

    def size(encoding: str) -> int:
        sent = encode_tensors(tensors, encoding, rng(), everything=True)
        update = Update(
            device="powerful",
            run="0123456789abcdef",
            round=1000,
            nonce="0" * 32,
            samples=1_000,
            exchange="delta",
            fingerprint="f" * 64,
            encoding=encoding,
            tensors=sent,
        )
        return len(to_bytes(update))

    sizes = {encoding: size(encoding) for encoding in ENCODINGS}
    whole = sizes["float32"]
    assert whole > 4 * sum(math.prod(shape) for shape in shapes.values())
    assert sizes["float16"] <= 0.53 * whole
    assert sizes["int8"] <= 0.26 * whole
    assert sizes["int4"] <= 0.14 * whole
