"""Updates in fewer bytes: tensors as float32, float16, or packed codes of 8 or 4 bits.

    q = round(x / s)     x ≈ q · s     s ≥ max|x| / L, L = 127 (int8) or 7 (int4)

Symmetric, so that zero stays zero. Rounding is stochastic: up with probability x/s - ⌊x/s⌋, so
E[q · s] = x and |x - q · s| ≤ s. The sender keeps the rounding error and adds it to its next
update. float16 is rounded to the nearest.

A tensor has one scale, or one for each output channel (its last axis) where a channel has 200
numbers or more, so that scales cost at most 1 % of int8's bytes and 2 % of int4's. A scale is the
upper half of a float32, the least such number that is not below max|x| / L: at most 0.8 % more.

float32 and float16 are sent under the tensors' names. Codes are sent as one tensor of bytes, all
tensors in the order of their names:

    scales   uint16, little endian: those of the first tensor, of the second, …
    codes    int8 in a byte; int4 two in a byte, the first in the lower half. Each tensor begins in
             a byte of its own; an unused last half is zero

The tensor of bytes is called `*` if it holds every tensor that the fleet knows; otherwise its name
lists theirs. So names, which can be larger than a small slice, are sent only where needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from broker.errors import NotQuantisable
from broker.protocol.slice import Tensors
from broker.protocol.wire import Array

ENCODINGS = ("float32", "float16", "int8", "int4")
PACKED = ("int8", "int4")
DOWNLINKS = ("float32", "float16")
EVERYTHING = "*"  # the name of codes of all tensors
BETWEEN = "\n"  # names of tensors, in the name of codes of some
LARGEST_VALUE = 1e12  # far above what training produces
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # also for zeros, so that x / s is always finite
_LEVELS = {"int8": 127, "int4": 7}
_LARGEST_HALF = float(np.finfo(np.float16).max)
_CHANNEL = 200  # numbers from which on a channel has a scale of its own
_SCALE_BYTES = 2

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Place:
    """Where a tensor's scales and codes are among the bytes of all tensors."""

    name: str
    shape: tuple[int, ...]
    scales: slice
    codes: slice


def places(shapes: Shapes, encoding: str) -> list[Place]:
    """Returns the place of each tensor; both sides know it from names and shapes alone."""
    found, scale = [], 0
    code = sum(_scale_bytes(shape) for shape in shapes.values())
    for name in sorted(shapes):
        shape = shapes[name]
        scale_end, code_end = scale + _scale_bytes(shape), code + _code_bytes(shape, encoding)
        found.append(Place(name, shape, slice(scale, scale_end), slice(code, code_end)))
        scale, code = scale_end, code_end
    return found


def packed_bytes(shapes: Shapes, encoding: str) -> int:
    """Returns the number of bytes of all scales and codes."""
    return sum(_scale_bytes(shape) + _code_bytes(shape, encoding) for shape in shapes.values())


def encode_tensors(
    tensors: Tensors, encoding: str, rng: np.random.Generator, *, everything: bool
) -> dict[str, Array]:
    """Returns what is sent for these tensors; `rng` decides which numbers are rounded up.

    `everything`: the fleet knows no other tensors.
    """
    if encoding == "float32":
        return dict(tensors)
    for name, x in tensors.items():
        if not np.max(np.abs(x), initial=0.0) <= LARGEST_VALUE:
            raise NotQuantisable(
                f"tensor {name!r} holds NaN, infinity, or numbers beyond all training."
            )
    if encoding == "float16":
        return {name: to_half(x) for name, x in tensors.items()}
    shapes = {name: x.shape for name, x in tensors.items()}
    packed = np.zeros(packed_bytes(shapes, encoding), np.uint8)
    for place in places(shapes, encoding):
        x = tensors[place.name]
        halves = _scale_halves(x, _LEVELS[encoding])
        packed[place.scales] = halves.view(np.uint8)
        codes = _round(x / _spread(halves), _LEVELS[encoding], rng).reshape(-1)
        packed[place.codes] = codes.view(np.uint8) if encoding == "int8" else _pack(codes)
    return {EVERYTHING if everything else packed_name(tensors): packed}


def decode_tensors(encoded: Mapping[str, Array], encoding: str, shapes: Shapes) -> Tensors:
    """Returns the float32 tensors of these shapes; does not copy what is float32 already."""
    if encoding == "float32":
        return {name: encoded[name] for name in shapes}
    if encoding == "float16":
        return {name: encoded[name].astype(np.float32) for name in shapes}
    (packed,) = encoded.values()
    tensors = {}
    for place in places(shapes, encoding):
        codes = packed[place.codes].view(np.int8)
        if encoding == "int4":
            codes = _unpack(codes, math.prod(place.shape))
        x = codes.reshape(place.shape).astype(np.float32)
        x *= _spread(packed[place.scales].view("<u2"))
        tensors[place.name] = x
    return tensors


def packed_name(names: Iterable[str]) -> str:
    """Returns the name of the codes of exactly these tensors."""
    return BETWEEN.join(sorted(names))


def bad_scale(packed: Array, shapes: Shapes, encoding: str) -> str | None:
    """Returns the first tensor with an impossible scale, as NaN or a negative number."""
    for place in places(shapes, encoding):
        scales = _widened_scales(packed[place.scales].view("<u2"))
        if not np.all((scales >= SMALLEST_SCALE) & (scales <= LARGEST_VALUE)):
            return place.name
    return None


def bad_code(packed: Array, shapes: Shapes, encoding: str) -> str | None:
    """Returns the first tensor with a code beyond -L … L, or with an unused half that is not 0."""
    for place in places(shapes, encoding):
        codes = packed[place.codes]
        if encoding == "int8":
            bad = np.any(codes == 0x80)  # -128
        else:  # a half of binary 1000 is -8
            hidden = math.prod(place.shape) % 2 == 1 and codes[-1] & 0xF0 != 0
            bad = hidden or np.any(codes & 0x0F == 0x08) or np.any(codes & 0xF0 == 0x80)
        if bad:
            return place.name
    return None


def to_half(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Returns the nearest float16; numbers beyond its range become its largest number."""
    return np.clip(x, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)


def widened(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Returns float16 tensors as float32, exactly, and all others unchanged."""
    return {n: x.astype(np.float32) if x.dtype == np.float16 else x for n, x in tensors.items()}


def _scales(shape: tuple[int, ...]) -> int:
    """Returns the number of scales of a tensor; an empty one has one."""
    size = math.prod(shape)
    return shape[-1] if len(shape) > 1 and size and size >= _CHANNEL * shape[-1] else 1


def _scale_bytes(shape: tuple[int, ...]) -> int:
    return _SCALE_BYTES * _scales(shape)


def _code_bytes(shape: tuple[int, ...], encoding: str) -> int:
    size = math.prod(shape)
    return size if encoding == "int8" else (size + 1) // 2


def _scale_halves(x: npt.NDArray[np.float32], levels: int) -> npt.NDArray[np.uint16]:
    """Returns the upper halves of the scales, rounded up so that codes do not exceed ±L."""
    flat = x.reshape(-1, _scales(x.shape))
    largest = np.max(np.abs(flat), axis=0, initial=0.0)
    whole = np.maximum(largest / levels, SMALLEST_SCALE).astype("<f4").view("<u4")
    return np.asarray((whole + 0xFFFF) >> 16, "<u2")


def _widened_scales(halves: Array) -> npt.NDArray[np.float32]:
    return np.asarray((halves.astype("<u4") << 16).view("<f4"))


def _spread(halves: Array) -> npt.NDArray[np.float32]:
    """Returns scales in a shape that multiplies a tensor: one for all, or one per channel."""
    scales = _widened_scales(halves)
    return scales.reshape(() if len(scales) == 1 else (-1,))


def _round(ratio: Array, levels: int, rng: np.random.Generator) -> npt.NDArray[np.int8]:
    """⌊r⌋ + 1 with probability r - ⌊r⌋, else ⌊r⌋; r exceeds ±L by at most a rounding error."""
    below = np.floor(ratio)
    up = rng.random(ratio.shape, dtype=np.float32) < ratio - below
    return np.asarray(np.clip(below + up, -levels, levels), np.int8)


def _pack(codes: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    halves = np.zeros(codes.size + codes.size % 2, np.uint8)
    halves[: codes.size] = codes.view(np.uint8) & 0x0F
    return np.asarray(halves[0::2] | halves[1::2] << 4, np.uint8)


def _unpack(packed: npt.NDArray[np.int8], size: int) -> npt.NDArray[np.int8]:
    codes = np.empty(2 * packed.size, np.int8)
    codes[0::2] = packed << 4 >> 4  # shifting back repeats the sign
    codes[1::2] = packed >> 4
    return codes[:size]
