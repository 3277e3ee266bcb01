"""Samples of a WAV file, from −1 to 1; the standard library reads them."""

from __future__ import annotations

import struct
import wave
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from firmware_sim.tensor_spec import Array

FRAMES_AT_ONCE = 16 * 2**10


class BadSound(ValueError):
    """A WAV file that cannot be used; the text is one sentence."""


def read_sound(file: BinaryIO, *, channels: int, rate: int | None) -> Iterator[Array]:
    """Yields blocks of samples, float64[count, channels]; raises `BadSound`."""
    try:
        with wave.open(file, "rb") as sound:
            if sound.getnchannels() != channels:
                raise BadSound(
                    f"a WAV file has {sound.getnchannels()} channels instead of {channels}."
                )
            if rate is not None and sound.getframerate() != rate:
                raise BadSound(
                    f"a WAV file has {sound.getframerate()} samples a second instead of {rate}."
                )
            width = sound.getsampwidth()
            while data := sound.readframes(FRAMES_AT_ONCE):
                whole = len(data) - len(data) % (width * channels)
                yield numbers_in(data[:whole], width).reshape(-1, channels)
    except (wave.Error, EOFError, RuntimeError, ValueError, struct.error) as error:
        if isinstance(error, BadSound):
            raise
        raise BadSound("a file is no WAV file with plain samples.") from None


def numbers_in(data: bytes, width: int) -> Array:
    """Returns samples of 1 to 4 bytes as numbers from −1 to 1; single bytes have no sign."""
    if width == 1:
        return (np.frombuffer(data, np.uint8) - 128.0) / 128.0
    if width not in (2, 3, 4):
        raise BadSound(f"a WAV file has {width} bytes a sample.")
    # The most significant bytes of 32 bits.
    wide = np.zeros((len(data) // width, 4), np.uint8)
    wide[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return wide.view("<i4")[:, 0] / 2.0**31
