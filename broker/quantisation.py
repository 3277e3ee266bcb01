"""Updates in fewer bytes: tensors as float32, float16, or codes of 8 or 4 bits and their scales.

    q = round(x / s)     x ≈ q · s     s = max|x| / L, L = 127 (int8) or 7 (int4)

Symmetric, so that zero stays zero. Rounding is stochastic: up with probability x/s - ⌊x/s⌋, so
E[q · s] = x and |x - q · s| ≤ s. What rounding loses, the sender keeps and adds to what it sends
next. float16 is rounded to the nearest.

A tensor has one scale, or one for each output channel (its last axis) where a channel has 400
numbers or more, so that scales cost at most 1 % of int8's bytes and 2 % of int4's. A tensor of up
to 64 numbers travels as float16 instead: a scale and its place in the header would cost more.

Codes travel under the tensor's own name: int8 in its shape; int4 flat, two in a byte, the first in
the lower half, an unused last half zero. Scales travel as `scale:<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from broker.slice import Tensors
from broker.wire import Array

ENCODINGS = ("float32", "float16", "int8", "int4")
DOWNLINKS = ("float32", "float16")
SCALE = "scale:"  # before the name of the tensor
LARGEST_VALUE = 1e12  # no training reaches it
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # also of zeros: x / s is always a number
_LEVELS = {"int8": 127, "int4": 7}
_LARGEST_HALF = float(np.finfo(np.float16).max)
_SMALL = 64  # numbers in a tensor that is not worth a scale
_CHANNEL = 400  # numbers in a channel that is


class NotQuantisable(Exception):
    """Numbers that no code stands for; the text is one sentence."""


@dataclass(frozen=True)
class Layout:
    """How a tensor travels; `scales` is None where it needs none."""

    dtype: str
    shape: tuple[int, ...]
    scales: tuple[int, ...] | None


def layout(shape: tuple[int, ...], encoding: str) -> Layout:
    """It follows from the shape alone, so both sides know it."""
    size = math.prod(shape)
    if encoding == "float32":
        return Layout("float32", shape, None)
    if encoding == "float16" or size <= _SMALL:
        return Layout("float16", shape, None)
    scales = shape[-1:] if len(shape) > 1 and size >= _CHANNEL * shape[-1] else ()
    if encoding == "int8":
        return Layout("int8", shape, scales)
    return Layout("uint8", ((size + 1) // 2,), scales)


def encode_tensors(tensors: Tensors, encoding: str, rng: np.random.Generator) -> dict[str, Array]:
    """What travels for these tensors; `rng` decides what is rounded up."""
    if encoding == "float32":
        return dict(tensors)
    encoded: dict[str, Array] = {}
    for name, x in tensors.items():
        if not np.max(np.abs(x), initial=0.0) <= LARGEST_VALUE:
            raise NotQuantisable(
                f"tensor {name!r} holds NaN, infinity, or numbers beyond all training."
            )
        how = layout(x.shape, encoding)
        if how.scales is None:
            encoded[name] = to_half(x)
            continue
        scale = _scale(x, how.scales, _LEVELS[encoding])
        codes = _round(x / scale, _LEVELS[encoding], rng)
        encoded[name] = codes if encoding == "int8" else _pack(codes)
        encoded[SCALE + name] = scale
    return encoded


def decode_tensors(
    encoded: Mapping[str, Array], encoding: str, shapes: Mapping[str, tuple[int, ...]]
) -> Tensors:
    """The float32 tensors of these shapes; float32 itself is not copied."""
    return {name: _decode(name, encoded, encoding, shape) for name, shape in shapes.items()}


def are_scales(scale: Array) -> bool:
    """Whether every one of them can be a scale; NaN and negative numbers cannot."""
    return bool(np.all((scale >= SMALLEST_SCALE) & (scale <= LARGEST_VALUE)))


def are_codes(codes: Array, size: int) -> bool:
    """Whether every code of a tensor of `size` numbers is within -L … L, and nothing is hidden."""
    if codes.dtype == np.int8:
        return not np.any(codes == -128)
    if codes.dtype == np.uint8:  # a half of binary 1000 is -8
        hidden = size % 2 == 1 and codes[-1] & 0xF0 != 0
        return not (hidden or np.any(codes & 0x0F == 0x08) or np.any(codes & 0xF0 == 0x80))
    return True


def to_half(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """The nearest float16; what is beyond its range becomes its largest number."""
    return np.clip(x, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)


def widened(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """float16 as float32, exactly; whatever else there is stays as it is."""
    return {n: x.astype(np.float32) if x.dtype == np.float16 else x for n, x in tensors.items()}


def _scale(x: Array, scales: tuple[int, ...], levels: int) -> npt.NDArray[np.float32]:
    axes = tuple(range(x.ndim - 1)) if scales else None
    largest = np.max(np.abs(x), axis=axes)
    return np.asarray(np.maximum(largest / levels, SMALLEST_SCALE), np.float32)


def _round(ratio: Array, levels: int, rng: np.random.Generator) -> npt.NDArray[np.int8]:
    """⌊r⌋ + 1 with probability r - ⌊r⌋, else ⌊r⌋; r exceeds ±L by at most a rounding error."""
    below = np.floor(ratio)
    up = rng.random(ratio.shape, dtype=np.float32) < ratio - below
    return np.asarray(np.clip(below + up, -levels, levels), np.int8)


def _pack(codes: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    halves = np.zeros(codes.size + codes.size % 2, np.uint8)
    halves[: codes.size] = codes.reshape(-1).view(np.uint8) & 0x0F
    return np.asarray(halves[0::2] | halves[1::2] << 4, np.uint8)


def _unpack(packed: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.int8]:
    codes = np.empty(2 * packed.size, np.int8)
    signed = packed.view(np.int8)
    codes[0::2] = signed << 4 >> 4  # shifting back repeats the sign
    codes[1::2] = signed >> 4
    return codes[:size]


def _decode(
    name: str, encoded: Mapping[str, Array], encoding: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    codes = encoded[name]
    if encoding == "float32":
        return codes
    if codes.dtype == np.uint8:
        codes = _unpack(codes, math.prod(shape)).reshape(shape)
    x = codes.astype(np.float32)
    if codes.dtype == np.int8:
        x *= encoded[SCALE + name]
    return x
